"""FP8 with one scale for each row: ``fp8_e4m3fn_row_bf16`` in the layout ``row_scale_v1``.

An element is ``code * scale``: E4M3FN codes [R, K] row by row, then the bf16 scales [R]. The
product has at most 12 significant bits, so float32 holds it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ninfer_core.artifact.buffers import Bytes, tensor_bytes
from ninfer_core.artifact.formats.base import Plane, Shape, row_count
from ninfer_core.artifact.formats.packed import plane_rows, refuse_not_finite, scale_faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

ROW_SCALE: Final = "row_scale_v1"
LARGEST_CODE: Final = 448.0
"""The largest finite E4M3FN value."""


@dataclass(frozen=True, slots=True)
class RowScaledFp8:
    """E4M3FN codes under a bf16 scale per row.

    Three mantissa bits err by at most 2^-4 of each value that a code can normally represent.
    """

    name: str = "fp8_e4m3fn_row_bf16"
    layouts: tuple[str, ...] = (ROW_SCALE,)
    rms_error_limit: float = 2.0**-4
    row_block: int | None = 1
    torch_dtype: str | None = None

    def planes(self, shape: Shape, layout: str) -> tuple[Plane, ...]:
        rows, width = row_count(shape), shape[-1]
        return (
            Plane("codes", 0, rows * width, "float8_e4m3fn", (width,)),
            Plane("scales", rows * width, 2 * rows, "bfloat16"),
        )

    def encode(self, values: torch.Tensor, layout: str) -> tuple[Bytes, ...]:
        """``scale = amax / 448`` in bf16, one step up where a code would pass 448; codes are
        ``value / scale`` in float32, rounded half to even. Rows of zeros have scale and codes 0.

        Raises `ArtifactError` for NaN and infinity.
        """
        import torch

        rows = values.reshape(-1, values.shape[-1]).to(torch.float32)
        peaks = rows.abs().amax(dim=1)
        refuse_not_finite(self.name, peaks)
        scales = _scales(peaks)
        divisors = torch.where(peaks > 0, scales.to(torch.float32), 1.0)
        ratios = rows / divisors[:, None]
        ratios[peaks == 0] = 0.0
        codes = ratios.clamp_(-LARGEST_CODE, LARGEST_CODE).to(torch.float8_e4m3fn)
        return tensor_bytes(codes), tensor_bytes(scales)

    def decode(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> torch.Tensor:
        return decode_row_scaled(*self._planes(storage, shape, layout, rows))

    def faults(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> Iterator[str]:
        import torch

        codes, scales = self._planes(storage, shape, layout, rows)
        yield from scale_faults(scales, (codes.view(torch.uint8) != 0).any(dim=1))

    def _planes(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scales = (plane_rows(storage, p, rows) for p in self.planes(shape, layout))
        return codes, scales


def decode_row_scaled(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [R, K] of E4M3FN ``codes`` [R, K] and bf16 ``scales`` [R], exactly."""
    import torch

    return codes.to(torch.float32) * scales.to(torch.float32)[:, None]


def _scales(peaks: torch.Tensor) -> torch.Tensor:
    """bf16 [R]: the nearest to ``peak / 448``, or the next one where that is too small."""
    import torch

    nearest = (peaks / LARGEST_CODE).to(torch.bfloat16)
    short = nearest.to(torch.float32) * LARGEST_CODE < peaks
    # Positive floats are ordered like their bits: adding one gives the next larger.
    return (nearest.view(torch.int16) + short.to(torch.int16)).view(torch.bfloat16)


FP8_ROW: Final = RowScaledFp8()
