"""Where parameters live while the model runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import WeightMatrix

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Residence(Protocol):
    """Takes parameters to the memory that the ops read.

    It may keep what it is given: tensors over a mapped artifact must not be written to. ``name`` is
    the logical parameter (several joined by `` + `` for a fused matrix), for errors and accounts.
    """

    def matrix(self, name: str, weight: WeightMatrix) -> WeightMatrix:
        """``weight`` with the same format and shape, its planes in this memory."""
        ...

    def vector(self, name: str, values: Tensor) -> Tensor:
        """A small tensor (norm scale, convolution, gate, rotary table) in this memory."""
        ...

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Room in this memory for a plane that a source makes there; contents undefined."""
        ...


class HostResidence:
    """The host's own memory: parameters stay where they are, matrices in the mapped file."""

    def matrix(self, name: str, weight: WeightMatrix) -> WeightMatrix:
        return weight

    def vector(self, name: str, values: Tensor) -> Tensor:
        return values

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        import torch

        return torch.empty(shape, dtype=dtype)


HOST = HostResidence()
