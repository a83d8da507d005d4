"""Read-only weights in the form that the layers multiply by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import WeightMatrix

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionParameters:
    """Gated attention. ``inputs`` stacks, by rows: per query head its query and its gate
    (interleaved head by head, as the checkpoint stores them), then keys, then values."""

    inputs: WeightMatrix
    output: WeightMatrix
    q_scale: Tensor
    k_scale: Tensor


@dataclass(frozen=True, slots=True)
class GdnParameters:
    """Gated delta net. ``inputs`` stacks q|k|v, z, b and a by rows; ``conv`` f32[4, C];
    ``decay_rate`` = exp(A_log) and ``dt_bias`` f32[nv]; ``norm_scale`` f32[dv] as stored."""

    inputs: WeightMatrix
    output: WeightMatrix
    conv: Tensor
    decay_rate: Tensor
    dt_bias: Tensor
    norm_scale: Tensor


@dataclass(frozen=True, slots=True)
class MlpParameters:
    """SwiGLU. ``inputs`` stacks gate and up by rows."""

    inputs: WeightMatrix
    output: WeightMatrix


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One decoder layer; scales f32[H] are ``1 + w`` of the checkpoint's zero-centred norms."""

    input_scale: Tensor
    mixer: AttentionParameters | GdnParameters
    post_scale: Tensor
    mlp: MlpParameters


@dataclass(frozen=True, slots=True)
class TextParameters:
    """The text model. ``head`` is ``embedding`` itself when the checkpoint ties them."""

    embedding: WeightMatrix
    layers: tuple[LayerParameters, ...]
    final_scale: Tensor
    head: WeightMatrix
    inverse_frequencies: Tensor
    rope_axes: Tensor
