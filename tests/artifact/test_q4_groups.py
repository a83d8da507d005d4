"""Four-bit groups: bytes by hand, and codes and scales derived again with numpy."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from ninfer_core.artifact import ArtifactError
from ninfer_core.artifact.formats import Q4_GROUPS, ROW_SPLIT, storage_bytes

TINY = 2.0**-24
"""The smallest fp16 above zero, bits 0x0001."""


def stored(values: torch.Tensor) -> memoryview:
    shape = tuple(values.shape)
    storage = bytearray(storage_bytes(Q4_GROUPS, shape, ROW_SPLIT))
    encoded = Q4_GROUPS.encode(values, ROW_SPLIT)
    for plane, data in zip(Q4_GROUPS.planes(shape, ROW_SPLIT), encoded, strict=True):
        storage[plane.offset : plane.offset + plane.bytes] = data
    return memoryview(storage)


def decoded(values: torch.Tensor) -> torch.Tensor:
    return Q4_GROUPS.decode(stored(values), tuple(values.shape), ROW_SPLIT, (0, len(values)))


def by_definition(values: np.ndarray) -> tuple[bytes, bytes]:
    """(codes, scales) of float32 rows, one element at a time."""
    code_plane, scale_plane = bytearray(), bytearray()
    for row in values:
        padded = np.concatenate([row, np.zeros(-len(row) % 128, np.float32)])
        codes = []
        for group in padded.reshape(-1, 64):
            peak = np.abs(group).max()
            scale = np.float16(peak / np.float32(7))
            if scale == 0 and peak > 0:
                scale = np.array(1, np.uint16).view(np.float16)[()]
            scale_plane += scale.tobytes()
            inverse = np.float32(1) / np.float32(scale) if peak > 0 else np.float32(0)
            # Python rounds half to even.
            codes += [max(-8, min(7, round(float(value * inverse)))) for value in group]
        code_plane += bytes(
            (low & 15) | (high & 15) << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)
        )
    return bytes(code_plane), bytes(scale_plane)


def planes_of(values: torch.Tensor) -> tuple[bytes, bytes]:
    codes, scales = Q4_GROUPS.encode(values, ROW_SPLIT)
    return bytes(codes), bytes(scales)


def test_bytes_by_hand() -> None:
    data = bytes(stored(torch.tensor([[7.0, -7.0, 3.5], [0.0, 0.25, -1.75]])))
    # 3.5 is half way and goes to 4; the second row has the scale 0.25 and codes 0, 1, -7.
    assert data[:64] == bytes([0x97, 0x04]) + bytes(62)
    assert data[64:128] == bytes([0x10, 0x09]) + bytes(62)
    assert data[128:256] == bytes(128)
    assert data[256:] == struct.pack("<4e", 1.0, 0.0, 0.25, 0.0)


@pytest.mark.parametrize(
    ("shape", "scales_at", "size"),
    [
        ((7168, 5120), 18_350_080, 19_496_960),
        ((3, 130), 512, 512 + 3 * 4 * 2),
        ((1, 1), 256, 260),
        ((2, 256), 256, 272),
    ],
)
def test_sizes(shape: tuple[int, int], scales_at: int, size: int) -> None:
    codes, scales = Q4_GROUPS.planes(shape, ROW_SPLIT)
    assert (codes.offset, scales.offset) == (0, scales_at)
    assert storage_bytes(Q4_GROUPS, shape, ROW_SPLIT) == size


def test_every_code_decodes_to_its_value() -> None:
    codes = bytes(low | high << 4 for high in range(8) for low in range(0, 16, 2))
    storage = memoryview(codes.ljust(256, b"\0") + struct.pack("<2e", 0.375, 3.0))
    row = Q4_GROUPS.decode(storage, (1, 128), ROW_SPLIT, (0, 1))[0].tolist()
    signed = [value - 16 if value > 7 else value for high in range(8) for low in range(0, 16, 2)
              for value in (low, high)]  # fmt: skip
    assert row == [code * 0.375 for code in signed[:64]] + [code * 3.0 for code in signed[64:]]


EDGES = {
    "zeros": [0.0, -0.0, 0.0],
    "ties go to even": [7.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -6.5],
    "largest is negative": [-7.0, 6.9, 1.0],
    "scale is rounded": [7.003, -7.003, 3.3],
    "underflow is rescued": [1e-8, -1e-8, 0.0],
    "underflow keeps codes": [1e-7, -1e-7, 6e-8],
    "clamped to both ends": [9.8 * TINY, -9.8 * TINY, TINY],
    "subnormal scale": [7 * 37 * TINY, -100 * TINY, 5 * TINY],
    "largest scale": [7 * 65504.0, -7 * 65504.0, 65504.0],
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_follow_the_definition(name: str) -> None:
    row = np.array([EDGES[name]], dtype=np.float32)
    assert planes_of(torch.from_numpy(row)) == by_definition(row)


def test_the_clamped_edge_by_hand() -> None:
    values = torch.tensor([EDGES["clamped to both ends"]])
    # 9.8 / 7 rounds to one step of fp16; the codes would be 10 and -10.
    assert decoded(values).tolist() == [[7 * TINY, -8 * TINY, TINY]]


@pytest.mark.parametrize("width", [1, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_random_rows_follow_the_definition(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    values = torch.randn(4, width, generator=generator) * torch.logspace(-4, 2, 4)[:, None]
    values = values.to(dtype)
    assert planes_of(values) == by_definition(values.float().numpy())


def test_errors_stay_within_half_a_step() -> None:
    values = torch.randn(8, 640, generator=torch.Generator().manual_seed(2))
    error = (decoded(values) - values).abs().reshape(8, 10, 64)
    step = values.reshape(8, 10, 64).abs().amax(dim=2, keepdim=True) / 7
    # fp16 rounds the scale by at most 2^-11 of itself, which seven steps can add up.
    assert (error <= step * (0.5 + 7 * 2**-11)).all()
    assert (error > step * 0.49).any()
    assert 0.08 < float(error.norm() / values.norm()) < Q4_GROUPS.rms_error_limit


def test_a_block_of_rows_decodes_like_the_whole() -> None:
    values = torch.randn(5, 130, generator=torch.Generator().manual_seed(3))
    part = Q4_GROUPS.decode(stored(values), (5, 130), ROW_SPLIT, (1, 4))
    assert torch.equal(part, decoded(values)[1:4])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ArtifactError, match="no code for NaN and infinity"):
        Q4_GROUPS.encode(torch.tensor([[1.0, bad]]), ROW_SPLIT)


def test_a_scale_that_overflows_is_refused() -> None:
    with pytest.raises(ArtifactError, match="cannot hold 500000: a seventh of it overflows"):
        Q4_GROUPS.encode(torch.tensor([[1.0, -5e5]]), ROW_SPLIT)


def faults(values: torch.Tensor, at: int, data: bytes) -> list[str]:
    """Faults of encoded ``values`` with ``data`` written over byte ``at``."""
    storage = stored(values)
    storage[at : at + len(data)] = data
    shape = tuple(values.shape)
    return list(Q4_GROUPS.faults(storage, shape, ROW_SPLIT, (0, shape[0])))


def test_faults() -> None:
    values = torch.tensor([[7.0, -7.0, 3.5]])
    padding = ["has codes or scales other than zero in its padding columns"]
    assert faults(values, 0, b"") == []
    assert faults(values, 256, struct.pack("<e", -1.0)) == ["has negative scales"]
    zero = ["has codes other than zero under a scale of zero"]
    assert faults(values, 256, struct.pack("<e", 0.0)) == zero
    assert faults(values, 1, b"\x14") == padding
    assert faults(values, 258, struct.pack("<e", 1.0)) == padding
