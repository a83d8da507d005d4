"""Encode one object at a time, block by block, and refuse what would not be faithful."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.artifact.buffers import Bytes
from ninfer_core.artifact.convert.architecture import ParameterRole
from ninfer_core.artifact.convert.plan import Member, ObjectPlan
from ninfer_core.artifact.convert.progress import PhaseMeter
from ninfer_core.artifact.convert.safetensors import SourceTensor
from ninfer_core.artifact.errors import ArtifactError, ConversionError
from ninfer_core.artifact.formats import (
    FormatRegistry,
    Plane,
    WeightFormat,
    row_blocks,
    row_count,
    storage_bytes,
)
from ninfer_core.artifact.model import QualityBlock
from ninfer_core.artifact.quality import (
    BLOCK_ELEMENTS,
    NO_ZERO_ROWS,
    SOME_ZERO_ROWS,
    QualityMeter,
    is_finite,
    share,
)
from ninfer_core.artifact.writer import ArtifactWriter

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows [n, width] of one source of one member."""

    member: int
    source: SourceTensor
    values: torch.Tensor


class ObjectEncoder:
    """Streams objects into a writer; memory holds one block, or one object where a format must.

    ``allow_zero_rows`` accepts matrices with up to half their rows zero (pruned models).
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        formats: FormatRegistry,
        progress: PhaseMeter,
        *,
        allow_zero_rows: bool = False,
    ) -> None:
        self._writer = writer
        self._formats = formats
        self._progress = progress
        self._allow_zero_rows = allow_zero_rows

    def encode(self, plan: ObjectPlan) -> QualityBlock:
        """Write and finish one object; raises `ConversionError` naming the tensor at fault."""
        weight_format = self._formats.get(plan.storage.format, plan.id)
        meters = [QualityMeter(vector=len(m.spec.shape) == 1) for m in plan.members]
        self._write_gaps(plan, weight_format)
        row = 0
        for pieces in _blocks(plan, weight_format):
            row += self._encode_block(plan, weight_format, row, pieces, meters)
        quality = self._quality(plan, weight_format, meters)
        self._writer.finish(plan.id, quality)
        return quality

    def _write_gaps(self, plan: ObjectPlan, weight_format: WeightFormat) -> None:
        """Zeros between planes."""
        end = 0
        for plane in weight_format.planes(plan.shape, plan.storage.layout):
            self._writer.write(plan.id, end, bytes(plane.offset - end))
            end = plane.offset + plane.bytes

    def _encode_block(
        self,
        plan: ObjectPlan,
        weight_format: WeightFormat,
        row: int,
        pieces: Sequence[_Piece],
        meters: Sequence[QualityMeter],
    ) -> int:
        """Encode and account for a block that starts at ``row``; returns its rows."""
        for piece in pieces:
            _refuse_not_finite(piece)
        values = _joined(pieces)
        encoded = _encoded(pieces[0].source, weight_format, values, plan.storage.layout)
        self._write_planes(plan, weight_format, row, encoded)
        stored = _stored(weight_format, plan.storage.layout, values, encoded)
        _account(pieces, stored, meters)
        for piece in pieces:
            self._progress(piece.source.name, piece.values.nbytes)
        return len(values)

    def _write_planes(
        self, plan: ObjectPlan, weight_format: WeightFormat, row: int, encoded: Sequence[Bytes]
    ) -> None:
        rows = row_count(plan.shape)
        planes = weight_format.planes(plan.shape, plan.storage.layout)
        for plane, data in zip(planes, encoded, strict=True):
            self._writer.write(plan.id, plane.offset + row * plane.bytes // rows, data)

    def _quality(
        self, plan: ObjectPlan, weight_format: WeightFormat, meters: Sequence[QualityMeter]
    ) -> QualityBlock:
        whole = QualityMeter(vector=len(plan.shape) == 1)
        limit = NO_ZERO_ROWS
        for member, meter in zip(plan.members, meters, strict=True):
            own_limit = self._zero_row_limit(member)
            _refuse_unsound(member, meter, weight_format, own_limit)
            whole.merge(meter)
            limit = max(limit, own_limit)
        dtypes = {source.torch_dtype for m in plan.members for source in m.sources}
        return whole.block(" ".join(sorted(dtypes)), limit)

    def _zero_row_limit(self, member: Member) -> float:
        lenient = self._allow_zero_rows or member.spec.role is not ParameterRole.MATRIX
        return SOME_ZERO_ROWS if lenient else NO_ZERO_ROWS


def _blocks(plan: ObjectPlan, weight_format: WeightFormat) -> Iterator[list[_Piece]]:
    """Blocks of pieces: one piece each where the format allows, else all at once."""
    width, step = plan.shape[-1], weight_format.row_block
    parts = [
        (index, source, math.prod(source.shape) // width)
        for index, member in enumerate(plan.members)
        for source in member.sources
    ]
    if step is None or any(rows % step for _, _, rows in parts):
        yield [_Piece(i, source, source.rows(width, 0, rows)) for i, source, rows in parts]
        return
    for index, source, rows in parts:
        for start, stop in row_blocks(rows, width, step, BLOCK_ELEMENTS):
            yield [_Piece(index, source, source.rows(width, start, stop))]


def _joined(pieces: Sequence[_Piece]) -> torch.Tensor:
    import torch

    return pieces[0].values if len(pieces) == 1 else torch.cat([p.values for p in pieces])


def _encoded(
    source: SourceTensor, weight_format: WeightFormat, values: torch.Tensor, layout: str
) -> tuple[Bytes, ...]:
    try:
        return weight_format.encode(values, layout)
    except ArtifactError as error:
        raise ConversionError(
            source.name, f"{error.field} {error.problem}", "choose a recipe with more range"
        ) from error


def _stored(
    weight_format: WeightFormat, layout: str, values: torch.Tensor, encoded: Sequence[Bytes]
) -> torch.Tensor | None:
    """What a reader will decode, or None where it equals ``values`` bit for bit."""
    if str(values.dtype) == f"torch.{weight_format.torch_dtype}":
        return None
    rows, width = values.shape
    storage = _assembled(weight_format, (rows, width), layout, encoded)
    return weight_format.decode(storage, (rows, width), layout, (0, rows))


def _account(
    pieces: Sequence[_Piece], stored: torch.Tensor | None, meters: Sequence[QualityMeter]
) -> None:
    start = 0
    for piece in pieces:
        stop = start + len(piece.values)
        meters[piece.member].add(piece.values, None if stored is None else stored[start:stop])
        start = stop


def _assembled(
    weight_format: WeightFormat, shape: tuple[int, int], layout: str, encoded: Sequence[Bytes]
) -> memoryview:
    if len(encoded) == 1:
        return memoryview(encoded[0]).cast("B")
    storage = bytearray(storage_bytes(weight_format, shape, layout))
    planes: Sequence[Plane] = weight_format.planes(shape, layout)
    for plane, data in zip(planes, encoded, strict=True):
        storage[plane.offset : plane.offset + plane.bytes] = data
    return memoryview(storage)


def _refuse_not_finite(piece: _Piece) -> None:
    if not is_finite(piece.values):
        raise ConversionError(
            piece.source.name,
            f"holds NaN or Inf in {piece.source.file}",
            "give a sound checkpoint: download it again or mend its training",
        )


def _refuse_unsound(
    member: Member, meter: QualityMeter, weight_format: WeightFormat, zero_row_limit: float
) -> None:
    name, quality = member.spec.name, meter.block("", zero_row_limit)
    if not meter.finite:
        raise ConversionError(
            name, f"overflows the format {weight_format.name}", "choose a recipe with more range"
        )
    if meter.collapsed_rows:
        raise ConversionError(
            name,
            f"{meter.collapsed_rows} of {meter.rows} rows collapse to zero in {weight_format.name}",
            "choose a recipe that keeps this parameter at higher precision",
        )
    if share(meter.zero_rows, meter.rows) > zero_row_limit:
        raise ConversionError(
            name,
            f"{meter.zero_rows} of {meter.rows} rows are all zero: the tensor has collapsed",
            "give a sound checkpoint, or allow zero rows if the model was pruned",
        )
    if quality.rms_relative_error > weight_format.rms_error_limit:
        raise ConversionError(
            name,
            f"rms relative error {quality.rms_relative_error} exceeds the limit "
            f"{weight_format.rms_error_limit} of {weight_format.name}",
            "choose a recipe that keeps this parameter at higher precision",
        )
