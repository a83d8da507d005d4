"""Read safetensors files without trusting them: every tensor as a view of the mapped file.

Format: 8 bytes header length (u64, little endian), JSON header of name to dtype, shape and
``data_offsets`` [begin, end) into the bytes that follow it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer_core.artifact.buffers import tensor_view
from ninfer_core.artifact.errors import ConversionError
from ninfer_core.artifact.fields import Node, parse_json
from ninfer_core.artifact.files import map_file

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 100_000_000
_MEND = "download or save the checkpoint again"
_LENGTH_BYTES = 8
_ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2}
_ITEM_BYTES |= {"I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
_TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor of a checkpoint; ``data`` are its bytes in the mapped file."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def torch_dtype(self) -> str:
        """Name of the torch dtype; raises `ConversionError` for one that is not converted."""
        found = _TORCH_DTYPES.get(self.dtype)
        if found is None:
            raise ConversionError(
                self.name,
                f"has dtype {self.dtype}, only {', '.join(_TORCH_DTYPES)} are converted",
                "give the unquantised checkpoint",
            )
        return found

    def rows(self, width: int, start: int, stop: int) -> torch.Tensor:
        """Elements as rows of ``width``: rows ``[start, stop)``, [n, width], sharing the file."""
        import torch

        dtype = getattr(torch, self.torch_dtype)
        values = tensor_view(self.data, dtype, start * width, (stop - start) * width)
        return values.reshape(stop - start, width)


def read_safetensors(path: Path) -> tuple[SourceTensor, ...]:
    """All tensors of a file in the order of their bytes; `ArtifactError` if it is unsound."""
    data = map_file(path, _MEND)
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if length > MAX_HEADER_BYTES or start > len(data):
        raise ConversionError(
            path.name, f"states a header of {length} bytes, which it lacks", _MEND
        )
    header = Node(parse_json(bytes(data[_LENGTH_BYTES:start]), path.name, _MEND), path.name, _MEND)
    tensors = [
        _tensor(path.name, name, node, data[start:])
        for name, node in header.members()
        if name != "__metadata__"
    ]
    ordered = sorted(tensors, key=lambda entry: entry[0])
    _check_apart(path.name, ordered)
    return tuple(tensor for _, tensor in ordered)


def _tensor(file: str, name: str, node: Node, payload: memoryview) -> tuple[int, SourceTensor]:
    """(first byte, tensor) of one header entry."""
    members = node.fields("dtype", "shape", "data_offsets")
    offsets = [entry.integer() for entry in members["data_offsets"].elements(2)]
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= len(payload):
        members["data_offsets"].fail(f"{offsets} is no range of the {len(payload)} data bytes")
    dtype = members["dtype"].text()
    shape = tuple(entry.integer() for entry in members["shape"].elements())
    size = _ITEM_BYTES.get(dtype)
    if size is not None and math.prod(shape) * size != offsets[1] - offsets[0]:
        node.fail(f"{dtype} of shape {list(shape)} does not take {offsets[1] - offsets[0]} bytes")
    data = payload[offsets[0] : offsets[1]]
    return offsets[0], SourceTensor(name, file, dtype, shape, data)


def _check_apart(file: str, ordered: Iterable[tuple[int, SourceTensor]]) -> None:
    for (first, one), (second, other) in pairwise(ordered):
        if first + len(one.data) > second:
            raise ConversionError(file, f"{one.name} and {other.name} overlap", _MEND)
