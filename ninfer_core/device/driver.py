"""The few calls of the NVIDIA driver that are made straight, through ctypes.

The probe asks here so that a process learns whether it has a GPU without importing torch; graphs
are launched here because a launch that keeps the interpreter's lock costs less than one that gives
it away. Asking starts the driver in this process: a process forked afterwards cannot use the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cache, partial

LIBRARY = "libcuda.so.1"

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""

_CARVEOUT = 9
"""CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT."""

_PORTABLE_AND_MAPPED = 3
"""CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP."""


class DriverError(Exception):
    """A driver call failed; ``code`` is its CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code


@dataclass(frozen=True, slots=True)
class Processor:
    """A GPU as the driver describes it; ``capability`` is (major, minor), memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int


class Driver:
    """The driver's library. Raises OSError where there is none."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._holding_lock = ctypes.PyDLL(LIBRARY)

    def start(self) -> None:
        """Start the driver in this process. Idempotent."""
        self._call("cuInit", ctypes.c_uint(0))

    def version(self) -> tuple[int, int]:
        """The newest CUDA (major, minor) that the driver knows."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def count(self) -> int:
        """GPUs that this process sees."""
        number = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def processor(self, index: int) -> Processor:
        """Describe one GPU."""
        handle, memory = ctypes.c_int(), ctypes.c_size_t()
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(index))
        self._call("cuDeviceGetName", name, ctypes.c_int(len(name)), handle)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
        major, minor = (self._attribute(which, handle) for which in (_MAJOR, _MINOR))
        return Processor(name.value.decode(errors="replace"), (major, minor), memory.value)

    def register(self, address: int, size: int) -> None:
        """Pin host memory and let every device of the process reach it at ``address``."""
        self._call(
            "cuMemHostRegister_v2",
            ctypes.c_void_p(address),
            ctypes.c_size_t(size),
            ctypes.c_uint(_PORTABLE_AND_MAPPED),
        )

    def unregister(self, address: int) -> None:
        """Undo :meth:`register`."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def device_address(self, address: int) -> int:
        """Where the current device sees registered host memory."""
        seen = ctypes.c_void_p()
        arguments = (ctypes.byref(seen), ctypes.c_void_p(address), ctypes.c_uint(0))
        self._call("cuMemHostGetDevicePointer_v2", *arguments)
        return seen.value or 0

    def prefer_shared_memory(self, function: int, percent: int) -> None:
        """How much of the memory that L1 cache and shared memory divide is to be shared memory
        while ``function`` runs."""
        arguments = (ctypes.c_void_p(function), ctypes.c_int(_CARVEOUT), ctypes.c_int(percent))
        self._call("cuFuncSetAttribute", *arguments)

    def upload_graph(self, executable: int, stream: int) -> None:
        """Let the device take what it needs for a graph now rather than at its first launch."""
        self._call("cuGraphUpload", ctypes.c_void_p(executable), ctypes.c_void_p(stream))

    def launcher(self, executable: int, stream: int, refused: Container[int]) -> Callable[[], int]:
        """A call that launches a graph, keeps the interpreter's lock and returns the CUresult.

        The stream is asked first: what it answers is returned, and nothing launched, where that is
        one of ``refused``, the results of a context that has failed.
        """
        ask = partial(self._holding_lock.cuStreamQuery, ctypes.c_void_p(stream))
        launch = partial(
            self._holding_lock.cuGraphLaunch, ctypes.c_void_p(executable), ctypes.c_void_p(stream)
        )

        def call() -> int:
            state: int = ask()
            code: int = state if state in refused else launch()
            return code

        return call

    def strided_copier(self, stream: int, *, three: bool) -> Callable[[int], int]:
        """A call that enqueues the copy which a CUDA_MEMCPY2D, or with ``three`` a CUDA_MEMCPY3D,
        at an address describes, keeps the interpreter's lock and returns the CUresult."""
        name = "cuMemcpy3DAsync_v2" if three else "cuMemcpy2DAsync_v2"
        copy, lane = getattr(self._holding_lock, name), ctypes.c_void_p(stream)

        def call(address: int) -> int:
            code: int = copy(ctypes.c_void_p(address), lane)
            return code

        return call

    def stream_state(self, stream: int) -> int:
        """The CUresult of asking a stream: 0 empty, 600 at work, anything else an error."""
        code: int = self._library.cuStreamQuery(ctypes.c_void_p(stream))
        return code

    def error_name(self, code: int) -> str:
        """What the driver calls ``code``."""
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(name))
        return name.value.decode() if name.value else "unknown error"

    def _attribute(self, which: int, handle: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(which), handle)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DriverError(name, code, self.error_name(code))


@cache
def driver() -> Driver:
    """The driver of this process. Raises OSError where none is installed."""
    return Driver()
