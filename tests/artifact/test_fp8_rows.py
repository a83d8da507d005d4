"""FP8 rows: bytes by hand, codes against a search through the definition of E4M3FN."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
import torch

from ninfer_core.artifact import ArtifactError
from ninfer_core.artifact.formats import FP8_ROW, ROW_SCALE, storage_bytes

FINITE = [code for code in range(256) if code & 0x7F != 0x7F]


def e4m3(code: int) -> Fraction:
    """Sign, four exponent bits with bias 7, three mantissa bits; 0x7F and 0xFF are NaN."""
    sign, exponent, mantissa = -1 if code & 0x80 else 1, code >> 3 & 15, code & 7
    if exponent == 0:
        return sign * Fraction(mantissa, 512)
    return sign * Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)


MAGNITUDES = [float(e4m3(code)) for code in range(0x7F)]


def nearest_code(ratio: float) -> int:
    """The code nearest to ``ratio``, ties to the even one, keeping the sign of zero."""
    negative = 0x80 if np.signbit(np.float32(ratio)) else 0
    # Differences of neighbours are exact in float64: 4 and 24 significant bits.
    size = abs(float(ratio))
    return negative | min(range(0x7F), key=lambda code: (abs(MAGNITUDES[code] - size), code & 1))


def bf16_bits(value: np.float32) -> int:
    """Round to nearest even by integer arithmetic on the bits."""
    bits = int(np.float32(value).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16_value(bits: int) -> np.float32:
    return np.uint32(bits << 16).view(np.float32)


def by_definition(row: np.ndarray) -> tuple[list[int], int]:
    """(codes, scale bits) of one float32 row."""
    peak = np.abs(row).max()
    if peak == 0:
        return [0] * len(row), 0
    bits = bf16_bits(peak / np.float32(448))
    if Fraction(float(bf16_value(bits))) * 448 < Fraction(float(peak)):
        bits += 1
    return [nearest_code(value / bf16_value(bits)) for value in row], bits


def stored(values: torch.Tensor) -> memoryview:
    return memoryview(b"".join(bytes(plane) for plane in FP8_ROW.encode(values, ROW_SCALE)))


def decoded(values: torch.Tensor) -> torch.Tensor:
    return FP8_ROW.decode(stored(values), tuple(values.shape), ROW_SCALE, (0, len(values)))


def test_bytes_by_hand() -> None:
    values = torch.tensor([[448.0, -224.0, 0.5], [0.0, -0.0, 0.0]])
    # 448 = 2^8 * 1.75, -224 = -2^7 * 1.75, 0.5 = 2^-1; the scale is 1.
    codes = bytes([0b0_1111_110, 0b1_1110_110, 0b0_0110_000, 0, 0, 0])
    assert bytes(stored(values)) == codes + struct.pack("<2H", 0x3F80, 0)


def test_planes_stand_one_after_another() -> None:
    codes, scales = FP8_ROW.planes((14336, 5120), ROW_SCALE)
    assert (codes.offset, codes.bytes, scales.offset) == (0, 14336 * 5120, 14336 * 5120)
    assert storage_bytes(FP8_ROW, (14336, 5120), ROW_SCALE) == 73_428_992


def test_every_code_decodes_to_its_value() -> None:
    scale = bf16_value(0x3F9D)
    storage = bytes(FINITE) + struct.pack("<H", 0x3F9D)
    row = FP8_ROW.decode(memoryview(storage), (1, len(FINITE)), ROW_SCALE, (0, 1))[0]
    expected = [float(e4m3(code) * Fraction(float(scale))) for code in FINITE]
    assert row.tolist() == expected


EDGES = {
    "zeros": [0.0, -0.0, 0.0, 0.0],
    "negative zero beside others": [-0.0, 1.0, -1e-9, 1e-9],
    "scale would be rounded down": [448 * (1 + 2.0**-9), 1.0, -3.3, 7.0],
    "scale is rounded up": [448 * (1 + 2.0**-7 - 2.0**-10), 1.0, -3.3, 7.0],
    "ties between codes": [448.0, 17.0, 19.0, -(2.0**-10)],
    "smallest scale": [448 * 2.0**-133, -(2.0**-133), 2.0**-135, 0.0],
    "scale would be zero": [1e-40, -5e-41, 0.0, 1e-45],
    "large": [3e38, -1e38, 1e30, 0.0],
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_follow_the_definition(name: str) -> None:
    row = np.array(EDGES[name], dtype=np.float32)
    codes, scale = by_definition(row)
    assert bytes(stored(torch.from_numpy(row)[None])) == bytes(codes) + struct.pack("<H", scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_random_rows_follow_the_definition(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(6, 40, generator=generator) * torch.logspace(-6, 2, 6)[:, None]
    values = values.to(dtype)
    codes, scales = zip(*map(by_definition, values.float().numpy()), strict=True)
    expected = b"".join(map(bytes, codes)) + struct.pack("<6H", *scales)
    assert bytes(stored(values)) == expected


def test_errors_stay_within_half_a_step() -> None:
    values = torch.randn(16, 256, generator=torch.Generator().manual_seed(2))
    values[:, ::7] *= 1e-4
    error = (decoded(values) - values).abs()
    scales = values.abs().amax(dim=1, keepdim=True) / 448 * (1 + 2**-7)
    assert (error <= torch.maximum(values.abs() * 2**-4, scales * 2**-10)).all()
    assert (error > values.abs() * 2**-5).any()
    assert float(error.norm() / values.norm()) <= FP8_ROW.rms_error_limit


def test_a_block_of_rows_decodes_like_the_whole() -> None:
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(3))
    part = FP8_ROW.decode(stored(values), (5, 3), ROW_SCALE, (1, 4))
    assert torch.equal(part, decoded(values)[1:4])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ArtifactError, match="no code for NaN and infinity"):
        FP8_ROW.encode(torch.tensor([[1.0, bad]]), ROW_SCALE)


def faults(codes: list[int], scale: int) -> list[str]:
    storage = memoryview(bytes(codes) + struct.pack("<H", scale))
    return list(FP8_ROW.faults(storage, (1, len(codes)), ROW_SCALE, (0, 1)))


def test_faults() -> None:
    assert faults([0x38, 0x80], 0x3F80) == faults([0, 0], 0) == []
    assert faults([0x38, 0], 0xBF80) == ["has negative scales"]
    assert faults([0x38, 0], 0) == ["has codes other than zero under a scale of zero"]
