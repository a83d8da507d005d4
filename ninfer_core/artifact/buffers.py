"""Bytes of mapped files: their hash, and torch tensors over them without copies."""

from __future__ import annotations

import hashlib
import warnings
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

Bytes: TypeAlias = bytes | bytearray | memoryview
_HASHED_AT_ONCE = 1 << 24


def sha256_hex(data: memoryview) -> str:
    """The SHA-256 of ``data``, piece by piece, so that a piece alone need be resident."""
    digest = hashlib.sha256()
    for start in range(0, len(data), _HASHED_AT_ONCE):
        digest.update(data[start : start + _HASHED_AT_ONCE])
    return digest.hexdigest()


def tensor_view(data: Bytes, dtype: torch.dtype, first: int, count: int) -> torch.Tensor:
    """Elements ``[first, first + count)`` of ``data`` as a 1-D tensor that shares its memory.

    The memory may be a read-only map: write to the tensor and the process dies.
    """
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(data, dtype=dtype, count=count, offset=first * dtype.itemsize)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements of a contiguous CPU tensor as bytes that share its memory."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data
