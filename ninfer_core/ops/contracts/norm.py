"""Normalisation and gating, row by row. All of these are row-invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, scale: Tensor, eps: float) -> Tensor:
        """``y = x * rsqrt(mean(x^2) + eps) * scale`` over the last dimension, in fp32, cast last.

        x[..., D], scale f32[D]. A zero-centred checkpoint weight ``w`` enters as ``scale = 1 + w``,
        formed once at load in fp32.
        """
        ...


class AddRmsNorm(Protocol):
    def __call__(
        self, x: Tensor, residual: Tensor, scale: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """``r = residual + x; y = rms_norm(r)``. Returns ``(y, r)``; x, residual [T, H]."""
        ...


class GatedRmsNorm(Protocol):
    def __call__(self, x: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
        """``y = scale * x * rsqrt(mean(x^2) + eps) * silu(gate)`` over the last dimension.

        x, gate [T, nv, dv] (gate may be a strided view), scale f32[dv] as stored: not zero-centred.
        Returns gate's dtype; the recurrence hands x over in fp32.
        """
        ...


class SwiGlu(Protocol):
    def __call__(self, gate_up: Tensor) -> Tensor:
        """``y = silu(gate_up[:, :I]) * gate_up[:, I:]``; gate_up x[T, 2I], returns x[T, I]."""
        ...


class SigmoidGate(Protocol):
    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        """``y = x * sigmoid(gate)``; x and gate [T, ...] of one shape, strided views allowed."""
        ...
