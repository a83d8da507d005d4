"""Strided copies: what the driver is asked for, in the words of cuda.h, moves the right bytes."""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_uint, c_void_p

import numpy as np
import pytest

from ninfer_core.device import strided
from ninfer_core.device.strided import StridedCopies, copy_here, enqueue

SIZE, SPACE = 48, 4096


class Memcpy2D(ctypes.Structure):
    _fields_ = [
        *[("srcXInBytes", c_size_t), ("srcY", c_size_t), ("srcMemoryType", c_uint)],
        *[("srcHost", c_void_p), ("srcDevice", c_void_p), ("srcArray", c_void_p)],
        ("srcPitch", c_size_t),
        *[("dstXInBytes", c_size_t), ("dstY", c_size_t), ("dstMemoryType", c_uint)],
        *[("dstHost", c_void_p), ("dstDevice", c_void_p), ("dstArray", c_void_p)],
        *[("dstPitch", c_size_t), ("WidthInBytes", c_size_t), ("Height", c_size_t)],
    ]


class Memcpy3D(ctypes.Structure):
    _fields_ = [
        *[("srcXInBytes", c_size_t), ("srcY", c_size_t), ("srcZ", c_size_t), ("srcLOD", c_size_t)],
        *[("srcMemoryType", c_uint), ("srcHost", c_void_p), ("srcDevice", c_void_p)],
        *[("srcArray", c_void_p), ("reserved0", c_void_p)],
        *[("srcPitch", c_size_t), ("srcHeight", c_size_t)],
        *[("dstXInBytes", c_size_t), ("dstY", c_size_t), ("dstZ", c_size_t), ("dstLOD", c_size_t)],
        *[("dstMemoryType", c_uint), ("dstHost", c_void_p), ("dstDevice", c_void_p)],
        *[("dstArray", c_void_p), ("reserved1", c_void_p)],
        *[("dstPitch", c_size_t), ("dstHeight", c_size_t)],
        *[("WidthInBytes", c_size_t), ("Height", c_size_t), ("Depth", c_size_t)],
    ]


class Driver:
    """Does what it is asked for at once. CU_MEMORYTYPE_HOST is 1, CU_MEMORYTYPE_DEVICE 2."""

    def __init__(self, answer: int = 0) -> None:
        self.asked: list[tuple[int, bool]] = []
        self.answer = answer

    def strided_copier(self, stream, *, three):
        def call(address: int) -> int:
            self.asked.append((stream, three))
            kind = Memcpy3D if three else Memcpy2D
            assert ctypes.sizeof(kind) == (200 if three else 128)
            copy = kind.from_address(address)
            return self.answer or self.solid(copy, copy.Depth if three else 1)

        return call

    def solid(self, copy, depth: int) -> int:
        for side in ("src", "dst"):
            assert getattr(copy, side + "Pitch") <= strided.MOST_PITCH
            assert getattr(copy, side + "Pitch") >= copy.WidthInBytes
        for layer in range(depth):
            for row in range(copy.Height):
                target, source = (
                    self.begin(copy, side, layer, row, depth) for side in ("dst", "src")
                )
                ctypes.memmove(target, source, copy.WidthInBytes)
        return 0

    def begin(self, copy, side: str, layer: int, row: int, depth: int) -> int:
        def of(name: str) -> int:
            return getattr(copy, side + name) or 0

        assert (of("XInBytes"), of("Y"), of("Array")) == (0, 0, 0)
        base = {1: of("Host"), 2: of("Device")}[of("MemoryType")]
        assert base
        assert not (of("Host") and of("Device"))
        height = of("Height") if depth > 1 else copy.Height
        return base + (layer * height + row) * of("Pitch")


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(strided, "driver", lambda: made)
    return made


def copies(device, host, to_host, *rows) -> StridedCopies:
    """Rows of (device, host, size, count, device step, host step), places in the arrays."""
    words = np.array(rows, np.int64).T.copy()
    words[0] += device.ctypes.data
    words[1] += host.ctypes.data
    return StridedCopies(to_host, *words)


def memories():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, SPACE, dtype=np.uint8) for _ in "dh"]


ROWS = ((0, 64, SIZE, 5, 256, SIZE), (3008, 1024, SIZE, 3, 64, 112), (2048, 2048, 16, 1, 16, 16))


@pytest.mark.parametrize("to_host", [True, False])
@pytest.mark.parametrize("most", [1 << 20, 128])
def test_the_right_bytes_move_and_no_others(driver, monkeypatch, most, to_host) -> None:
    """Also where the distance of one copy is too large for a pitch."""
    monkeypatch.setattr(strided, "MOST_PITCH", most)
    device, host = memories()
    expected = [device.copy(), host.copy()]
    target, source = (1, 0) if to_host else (0, 1)
    for at, there, size, count, step, host_step in ROWS:
        for row in range(count):
            places = (at + row * step, there + row * host_step)
            old = (device, host)[source][places[source] : places[source] + size]
            expected[target][places[target] : places[target] + size] = old
    given = copies(device, host, to_host, *ROWS)
    here = [device.copy(), host.copy()]
    copy_here(copies(*here, to_host, *ROWS))
    enqueue(given, 77, "cuda:0")
    for have in ((device, host), here):
        assert all(np.array_equal(a, b) for a, b in zip(have, expected, strict=True))
    solids = 0 if most == 1 << 20 else 1
    assert sorted(driver.asked) == [(77, False)] * (3 - solids) + [(77, True)] * solids


def test_nothing_is_asked_for_no_copy(driver) -> None:
    empty = np.zeros(0, np.int64)
    enqueue(StridedCopies(True, empty, empty, empty, empty, empty, empty), 7, "cuda:0")
    assert driver.asked == []
