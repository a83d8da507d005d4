"""Four-bit codes with a scale for each 64 columns: ``q4_g64_fp16`` in ``row_split_k128_v1``.

An element is ``code * scale`` with a code from -8 to 7. Rows are padded to a multiple of 128
columns, Kp. Planes, each at a multiple of 256 bytes: ``codes`` u8 [R, Kp / 2], two columns to a
byte in two's complement, the even one in the low nibble; ``scales`` fp16 [R, Kp / 64]. Codes of
padding columns and scales of groups without a real column are 0. The product has at most 15
significant bits, so float32 holds it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ninfer_core.artifact.buffers import Bytes, tensor_bytes
from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.formats.base import Plane, Shape, row_count
from ninfer_core.artifact.formats.packed import plane_rows, refuse_not_finite, scale_faults

if TYPE_CHECKING:
    import torch

ROW_SPLIT: Final = "row_split_k128_v1"
GROUP: Final = 64
_COLUMN_STEP: Final = 128
_PLANE_STEP: Final = 256


@dataclass(frozen=True, slots=True)
class GroupedQ4:
    """Four-bit codes under an fp16 scale per group of 64 columns of a row.

    A step is a seventh of the group's largest value: of normally distributed weights about a tenth
    is lost, and much more only where few outliers rule their groups.
    """

    name: str = "q4_g64_fp16"
    layouts: tuple[str, ...] = (ROW_SPLIT,)
    rms_error_limit: float = 0.25
    row_block: int | None = 1
    torch_dtype: str | None = None

    def planes(self, shape: Shape, layout: str) -> tuple[Plane, ...]:
        rows, padded = row_count(shape), padded_columns(shape[-1])
        codes = Plane("codes", 0, rows * padded // 2, "uint8", (padded // 2,))
        groups = padded // GROUP
        start = -(-codes.bytes // _PLANE_STEP) * _PLANE_STEP
        return codes, Plane("scales", start, 2 * rows * groups, "float16", (groups,))

    def encode(self, values: torch.Tensor, layout: str) -> tuple[Bytes, ...]:
        """``scale = amax / 7`` in fp16, at least the smallest subnormal for a group that is not
        zero; codes are ``value * (1 / scale)`` in float32, rounded half to even, clamped.

        Raises `ArtifactError` for NaN, infinity, and a group whose scale overflows fp16.
        """
        import torch

        width = values.shape[-1]
        rows = values.reshape(-1, width).to(torch.float32)
        padded = torch.nn.functional.pad(rows, (0, padded_columns(width) - width))
        grouped_RGg = padded.reshape(len(rows), -1, GROUP)
        peaks = grouped_RGg.abs().amax(dim=2)
        refuse_not_finite(self.name, peaks)
        scales = _scales(self.name, peaks)
        reciprocals = torch.where(peaks > 0, 1.0 / scales.to(torch.float32), 0.0)
        codes = (grouped_RGg * reciprocals[:, :, None]).round_().clamp_(-8, 7)
        return tensor_bytes(_pack(codes.to(torch.int8).reshape(padded.shape))), tensor_bytes(scales)

    def decode(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> torch.Tensor:
        return decode_grouped(*self._planes(storage, shape, layout, rows), shape[-1])

    def faults(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> Iterator[str]:
        codes, scales = self._planes(storage, shape, layout, rows)
        signed = unpack_nibbles(codes)
        coded = signed.reshape(len(signed), -1, GROUP).any(dim=2)
        yield from scale_faults(scales, coded)
        width = shape[-1]
        if bool(signed[:, width:].any()) or bool(scales[:, -(-width // GROUP) :].any()):
            yield "has codes or scales other than zero in its padding columns"

    def _planes(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scales = (plane_rows(storage, p, rows) for p in self.planes(shape, layout))
        return codes, scales


def padded_columns(columns: int) -> int:
    """Kp: columns that a row of ``columns`` is stored with."""
    return -(-columns // _COLUMN_STEP) * _COLUMN_STEP


def decode_grouped(codes: torch.Tensor, scales: torch.Tensor, columns: int) -> torch.Tensor:
    """float32 [R, columns] of codes u8 [R, Kp / 2] and scales fp16 [R, Kp / 64], exactly."""
    import torch

    signed = unpack_nibbles(codes)
    grouped = signed.to(torch.float32).reshape(len(signed), -1, GROUP)
    values = grouped * scales.to(torch.float32)[:, :, None]
    return values.reshape(signed.shape)[:, :columns].contiguous()


def unpack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """i8 [R, 2 n] in -8..7 from u8 [R, n]; the low nibble is the even column."""
    import torch

    signed = codes.view(torch.int8)
    low, high = signed.bitwise_left_shift(4).bitwise_right_shift(4), signed.bitwise_right_shift(4)
    return torch.stack((low, high), dim=2).reshape(len(codes), -1)


def _pack(codes: torch.Tensor) -> torch.Tensor:
    import torch

    nibbles = codes.view(torch.uint8).bitwise_and(15)
    return nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)


def _scales(format_name: str, peaks: torch.Tensor) -> torch.Tensor:
    import torch

    scales = (peaks / 7.0).to(torch.float16)
    if not bool(scales.isfinite().all()):
        raise ArtifactError(
            f"weight format {format_name!r}",
            f"cannot hold {float(peaks.max()):g}: a seventh of it overflows the fp16 scale",
            "choose a format with more range for this tensor",
        )
    scales[(scales == 0) & (peaks > 0)] = 2.0**-24
    return scales


Q4_GROUPS: Final = GroupedQ4()
