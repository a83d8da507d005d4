"""Full check of an artifact: every hash, every padding byte, every value's soundness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from ninfer_core.artifact.buffers import sha256_hex
from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.formats import (
    FormatRegistry,
    StrictFormat,
    WeightFormat,
    row_blocks,
    row_count,
)
from ninfer_core.artifact.model import StoredObject, TensorObject
from ninfer_core.artifact.quality import BLOCK_ELEMENTS, SOME_ZERO_ROWS, QualityMeter, share
from ninfer_core.artifact.reader import Artifact
from ninfer_core.artifact.validate import check_storage


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one object (or ``payload`` for the bytes between objects)."""

    object: str
    message: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Outcome of `verify`; ``unchecked`` lists tensors whose format is not installed."""

    artifact_id: str
    objects: int
    bytes: int
    problems: tuple[Problem, ...]
    unchecked: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def verify(
    artifact: Artifact,
    formats: FormatRegistry | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check every object of ``artifact`` and collect what is wrong.

    ``progress`` gets (bytes done, bytes in all). Reads the whole payload once, block by block.
    """
    known = formats or artifact.formats
    objects = artifact.directory.objects
    total = sum(entry.bytes for entry in objects)
    problems: list[Problem] = []
    unchecked: list[str] = []
    done = 0
    for entry in objects:
        weight_format = _format_of(entry, known)
        if isinstance(entry, TensorObject) and weight_format is None:
            unchecked.append(entry.id)
        messages = _object_problems(artifact, entry, weight_format)
        problems.extend(Problem(entry.id, message) for message in messages)
        done += entry.bytes
        if progress is not None:
            progress(done, total)
    problems.extend(_padding_problems(artifact))
    return VerifyReport(artifact.id, len(objects), total, tuple(problems), tuple(unchecked))


def _format_of(entry: StoredObject, formats: FormatRegistry) -> WeightFormat | None:
    return formats.find(entry.format) if isinstance(entry, TensorObject) else None


def _object_problems(
    artifact: Artifact, entry: StoredObject, weight_format: WeightFormat | None
) -> Iterator[str]:
    data = artifact.object_bytes(entry.id)
    if sha256_hex(data) != entry.sha256:
        yield "its bytes do not match the recorded SHA-256"
    if isinstance(entry, TensorObject):
        limit = weight_format.rms_error_limit if weight_format else None
        yield from _recorded_problems(entry, limit)
        if weight_format is not None:
            yield from _decoded_problems(entry, data, weight_format)


def _recorded_problems(entry: TensorObject, rms_error_limit: float | None) -> Iterator[str]:
    """What the quality block itself admits."""
    quality = entry.quality
    if not quality.finite:
        yield "was converted with values that are not finite"
    if quality.collapsed_row_share > 0:
        yield f"{quality.collapsed_row_share:.1%} of its rows collapsed to zero in conversion"
    if quality.zero_row_limit > SOME_ZERO_ROWS:
        yield (
            f"was converted with a zero-row limit of {quality.zero_row_limit}, "
            f"above {SOME_ZERO_ROWS}"
        )
    if rms_error_limit is not None and quality.rms_relative_error > rms_error_limit:
        yield (
            f"has an rms relative error of {quality.rms_relative_error}, "
            f"above the limit {rms_error_limit} of {entry.format}"
        )


def _decoded_problems(
    entry: TensorObject, data: memoryview, weight_format: WeightFormat
) -> Iterator[str]:
    """What the values show, for tensors whose bytes are as many as their format says."""
    try:
        check_storage(entry.id, entry, weight_format)
    except ArtifactError as error:
        yield error.message
    else:
        yield from _value_problems(entry, data, weight_format)


def _value_problems(
    entry: TensorObject, data: memoryview, weight_format: WeightFormat
) -> Iterator[str]:
    meter = QualityMeter(vector=len(entry.shape) == 1)
    faults: dict[str, None] = {}
    for block in _blocks(entry.shape, weight_format):
        values = weight_format.decode(data, entry.shape, entry.layout, block)
        meter.add(values, None)
        if isinstance(weight_format, StrictFormat):
            found_here = weight_format.faults(data, entry.shape, entry.layout, block)
            faults.update(dict.fromkeys(found_here))
    yield from faults
    if not meter.finite:
        yield "holds values that are not finite"
    found = share(meter.zero_rows, meter.rows)
    if found > entry.quality.zero_row_limit:
        yield f"{found:.1%} of its rows are all zero: the tensor has collapsed"
    if found != entry.quality.zero_row_share:
        yield f"has a zero-row share of {found}, the directory says {entry.quality.zero_row_share}"


def _blocks(shape: tuple[int, ...], weight_format: WeightFormat) -> Iterable[tuple[int, int]]:
    rows = row_count(shape)
    return row_blocks(rows, shape[-1], weight_format.row_block or rows, BLOCK_ELEMENTS)


def _padding_problems(artifact: Artifact) -> Iterator[Problem]:
    """Bytes between objects are zeros."""
    position = 0
    files = [(first, first + len(data), data) for first, data in artifact.payload_spans()]
    end = (files[-1][1], 0)
    for offset, count in chain(((o.offset, o.bytes) for o in artifact.directory.objects), (end,)):
        for first, last, data in files:
            gap = data[max(position, first) - first : max(min(offset, last) - first, 0)]
            if any(gap):
                yield Problem("payload", f"bytes before offset {offset} should be zeros")
        position = offset + count
