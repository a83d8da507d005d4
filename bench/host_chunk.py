"""Host time of a prompt chunk, without a GPU or on one.

Usage: TRITON_INTERPRET=1 python bench/host_chunk.py [--models 0.8b 9b] [--tokens 512]
       [--repeats 60] [--cold] [--profile | --launches]
       python bench/host_chunk.py --gpu [--wide]

The chunk route runs in a model of the size's layers and heads, narrow elsewhere, up to where
kernels are handed to the driver: compiled kernels and the library's products are stand-ins that do
nothing, so that what is left is Python and torch's own work on the host. What the driver and the
library take themselves is not in it. Prints the least and the median processor time of a chunk.
With ``--cold`` the caches hold nothing of it at its beginning, as after a wait for the device.

With ``--gpu`` nothing stands in: the time until all is enqueued, and until the device is done. With
``--wide`` the model has its real width.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import pstats
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from count_kernels import NARROW, VOCABULARY, Counted, Counting, RandomSource

from ninfer_core.contract.instance import Budget
from ninfer_core.device.base import LaneRole
from ninfer_core.device.cpu import open_device
from ninfer_core.device.cuda.open import open_device as open_gpu
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.select import select_ops
from ninfer_ops_triton import launch
from ninfer_ops_triton.backend import BACKEND
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.geometry.table import SIZES, Size, config_of
from ninfer_qwen3_5.load.text import TextLoader
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.layout import Numerics
from ninfer_qwen3_5.program.queued.rehearsal import Rehearsal

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
COLD_BYTES = 256 << 20
"""Written before each chunk with ``--cold``."""


def nothing(*_: Any, **__: Any) -> None:
    """A kernel that is handed to nobody."""


def stand_in() -> None:
    """Make :mod:`ninfer_ops_triton.launch` go the way of a GPU with kernels that do nothing."""
    from triton.runtime.interpreter import InterpretedFunction

    # Memory is kept for the next one, as by torch's own allocator on a GPU.
    libc = ctypes.CDLL(None)
    for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)):
        libc.mallopt(parameter, value)
    facts = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    torch.cuda._lazy_init = nothing
    torch.cuda._cached_device_count = 1
    torch.cuda._get_device_properties = lambda device: facts
    torch.cuda.current_device = lambda: 0
    torch.cuda._get_device_index = lambda device, optional=False: 0
    launch.on_gpu = lambda: True
    launch.INTERPRET = False
    launch._streams = lambda: lambda device: 0
    compiled = SimpleNamespace(run=nothing, function=1, packed_metadata=())
    InterpretedFunction.__getitem__ = lambda self, grid: lambda *_, **__: compiled
    launch.driver = lambda: SimpleNamespace(prefer_shared_memory=nothing)
    torch.mm = lambda x, w, out=None: x.new_empty(x.shape[0], w.shape[1]) if out is None else out
    torch.Tensor.addmm_ = lambda residual, x, w: residual


class GpuSource(RandomSource):
    def matrix(self, prefix: str, shapes: Any, use: str | None) -> WeightMatrix:
        weight = super().matrix(prefix, shapes, use)
        return replace(weight, planes={"weight": weight.planes["weight"].cuda()})

    def vector(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return super().vector(name, shape).cuda()


def chunk_of(
    size: Size, tokens: int, use: Callable[[Callable[[], object]], None], *, gpu: bool
) -> None:
    """Call ``use`` with a function that enqueues a chunk of ``tokens``."""
    config = TextConfig.from_json(config_of(size) | {"vocab_size": VOCABULARY})
    ops = select_ops(BACKEND, "counted").ops
    source = GpuSource() if gpu else RandomSource()
    model = TextModel(config, TextLoader(source, config, ops).load(), ops, VOCABULARY)

    def prepare(rehearsal: Callable[[], None]) -> None:
        assert isinstance(rehearsal, Rehearsal)
        use(lambda: rehearsal._chunks.rehearse(tokens, chunk=True))
        raise Counted

    budget = Budget(max_context=4 * tokens, max_concurrency=1, prefill_chunk=tokens)
    with ExitStack() as held:
        device = open_gpu() if gpu else open_device()
        if gpu:
            held.enter_context(device.lane(LaneRole.COMPUTE).enter())
        try:
            numerics = Numerics("bfloat16", "bf16")
            generation_program(model, budget, device, numerics, held, prepare)
        except Counted:
            return


def timed(chunk: Callable[[], object], repeats: int, cold: torch.Tensor | None) -> str:
    times = []
    with torch.inference_mode():
        for _ in range(repeats + 5):
            if cold is not None:
                cold.add_(1)
            began = time.thread_time()
            chunk()
            times.append(1e6 * (time.thread_time() - began))
    counted = times[5:]
    return f"least {min(counted):7.0f} us, median {statistics.median(counted):7.0f} us"


def timed_on_gpu(chunk: Callable[[], object], repeats: int) -> str:
    enqueued, done = [], []
    with torch.inference_mode():
        for _ in range(repeats + 5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            chunk()
            enqueued.append(1e6 * (time.perf_counter() - began))
            torch.cuda.synchronize()
            done.append(1e6 * (time.perf_counter() - began))
    return "; ".join(
        f"{what} least {min(times[5:]):7.0f} us, median {statistics.median(times[5:]):7.0f} us"
        for what, times in (("enqueued", enqueued), ("done", done))
    )


def profiled(chunk: Callable[[], object], repeats: int) -> None:
    with torch.inference_mode():
        chunk()
        with cProfile.Profile() as profiler:
            for _ in range(repeats):
                chunk()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def listed(chunk: Callable[[], object]) -> None:
    """Kernels by name; the library's products, being stand-ins, are not among them."""
    with torch.inference_mode(), Counting() as seen:
        chunk()
    print(len(seen.names), dict(Counter(seen.names)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", default=["0.8b", "9b"], choices=tuple(SIZES))
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--launches", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--cold", action="store_true")
    given = parser.parse_args()
    cold = torch.zeros(COLD_BYTES, dtype=torch.uint8) if given.cold else None
    if not given.gpu:
        stand_in()
    for name in given.models:

        def use(chunk: Callable[[], object], name: str = name) -> None:
            if given.launches:
                listed(chunk)
            elif given.profile:
                profiled(chunk, given.repeats)
            else:
                found = (
                    timed_on_gpu(chunk, given.repeats)
                    if given.gpu
                    else timed(chunk, given.repeats, cold)
                )
                print(f"{name}: {found}", flush=True)

        size = SIZES[name] if given.wide else replace(SIZES[name], **NARROW)
        chunk_of(size, given.tokens, use, gpu=given.gpu)


if __name__ == "__main__":
    main()
