"""Plain formats: sizes by formula, exact round trips, and the registry's rules."""

from __future__ import annotations

import struct

import pytest
import torch

from ninfer_core.artifact import ArtifactError, FormatRegistry, builtin_registry
from ninfer_core.artifact.formats import (
    BF16,
    BUILTIN_FORMATS,
    FP32,
    INT32,
    row_blocks,
    row_count,
    storage_bytes,
)

LAYOUT = "contiguous_le_v1"


@pytest.mark.parametrize(("fmt", "size"), [(BF16, 30), (FP32, 60), (INT32, 60)])
def test_size_is_elements_times_item(fmt, size: int) -> None:
    assert storage_bytes(fmt, (5, 3), LAYOUT) == size


def test_bf16_bytes_are_little_endian_and_rounded_to_even() -> None:
    # 1 + 2^-8 lies half way between 0x3F80 and 0x3F81, 1 + 3*2^-8 between 0x3F81 and 0x3F82.
    values = torch.tensor([1.0, -2.0, 1 + 2**-8, 1 + 3 * 2**-8])
    (plane,) = BF16.encode(values, LAYOUT)
    assert bytes(plane) == struct.pack("<4H", 0x3F80, 0xC000, 0x3F80, 0x3F82)


def test_fp32_and_int32_bytes() -> None:
    assert bytes(FP32.encode(torch.tensor([1.5, -0.25]), LAYOUT)[0]) == struct.pack(
        "<2f", 1.5, -0.25
    )
    assert bytes(INT32.encode(torch.tensor([7, -9]), LAYOUT)[0]) == struct.pack("<2i", 7, -9)


@pytest.mark.parametrize("fmt", [BF16, FP32, INT32])
def test_decoding_a_block_of_rows_equals_the_rows_of_the_whole(fmt) -> None:
    values = (torch.randn(7, 2, 3, generator=torch.Generator().manual_seed(0)) * 100).round()
    storage = memoryview(bytes(fmt.encode(values, LAYOUT)[0]))
    whole = fmt.decode(storage, (7, 2, 3), LAYOUT, (0, 14))
    assert torch.equal(whole, values.to(getattr(torch, fmt.torch_dtype)).float().reshape(14, 3))
    assert torch.equal(fmt.decode(storage, (7, 2, 3), LAYOUT, (3, 9)), whole[3:9])


def test_the_error_limit_is_the_worst_rounding() -> None:
    worst = torch.full((1, 8), 1 + 2.0**-8)
    (plane,) = BF16.encode(worst, LAYOUT)
    stored = BF16.decode(memoryview(plane), (8,), LAYOUT, (0, 1))
    error = float((stored - worst).norm() / worst.norm())
    assert BF16.rms_error_limit / 1.01 < error <= BF16.rms_error_limit
    assert FP32.rms_error_limit == 0


def test_row_blocks_tile_the_rows() -> None:
    assert list(row_blocks(10, 4, 1, 12)) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert list(row_blocks(3, 100, 1, 12)) == [(0, 1), (1, 2), (2, 3)]
    assert list(row_blocks(10, 1, 4, 6)) == [(0, 4), (4, 8), (8, 10)]
    assert row_count((5, 2, 3)) == 10
    assert row_count((3,)) == 1


def test_two_formats_of_one_name_are_refused() -> None:
    with pytest.raises(ArtifactError, match="registered twice"):
        FormatRegistry([*BUILTIN_FORMATS, BF16])


def test_an_unknown_format_names_its_user_and_what_is_known() -> None:
    with pytest.raises(ArtifactError, match="bf16, fp32, fp8_e4m3fn_row_bf16, int32") as caught:
        builtin_registry().get("q9", "text.w")
    assert caught.value.field == "text.w"
