"""Messages as bytes: one pickle, and large arrays beside it as they are.

Both ends run one installation of the same interpreter, and only the owner of the process holds the
other end: pickle is safe here. Arrays and buffers of :data:`OUT_OF_BAND` bytes and more follow the
pickle unserialised (protocol 5), so that neither end copies them into it.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final

OUT_OF_BAND: Final = 64 << 10
_HEADER: Final = struct.Struct("<QI")
"""Bytes of the pickle, and the number of buffers behind it, each with its length before it."""
_LENGTH: Final = struct.Struct("<Q")

Part = bytes | memoryview


class Truncated(Exception):
    """The stream ended inside a message."""


def encode(message: object) -> list[Part]:
    """The parts of one message, to be written one after the other.

    Raises what pickling raises for a value that cannot leave its process.
    """
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    body = io.BytesIO()
    pickler = pickle.Pickler(body, 5, buffer_callback=keep_in_band)
    pickler.dispatch_table = _TABLE
    pickler.dump(message)
    return _framed(body.getbuffer(), buffers)


def encode_plain(value: object) -> bytes:
    """One message of built-in values without large buffers; what a round needs, and quick."""
    body = pickle.dumps(value, 5)
    return _HEADER.pack(len(body), 0) + body


def decode(stream: io.BufferedReader) -> Any:
    """The next message. Raises EOFError at a clean end, Truncated inside a message."""
    header = stream.read(_HEADER.size)
    if not header:
        raise EOFError
    if len(header) < _HEADER.size:
        raise Truncated
    size, count = _HEADER.unpack(header)
    body = stream.read(size)
    if len(body) < size:
        raise Truncated
    if not count:
        return pickle.loads(body)
    return pickle.loads(body, buffers=[_buffer(stream) for _ in range(count)])


def _framed(body: memoryview, buffers: Iterable[memoryview]) -> list[Part]:
    kept = list(buffers)
    parts: list[Part] = [_HEADER.pack(body.nbytes, len(kept)), body]
    for buffer in kept:
        parts += (_LENGTH.pack(buffer.nbytes), buffer)
    return parts


def _buffer(stream: io.BufferedReader) -> bytearray:
    (size,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return _exactly(stream, size)


def _exactly(stream: io.BufferedReader, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = stream.readinto(view)
        if not count:
            raise Truncated
        view = view[count:]
    return data


def _reduce_proxy(proxy: MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return _proxy, (dict(proxy),)  # The type itself has no importable name.


def _proxy(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


_TABLE: Final = copyreg.dispatch_table.copy() | {MappingProxyType: _reduce_proxy}
