"""The decoder layers of a block: DFlash's, and DFlash2's with convolutions around each sublayer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.contract.speculation import TargetParts
from ninfer_core.ops.contracts.values import KvCache
from ninfer_spec_dflash.attention import Attention, Rotated
from ninfer_spec_dflash.config import (
    FFN_INNER,
    FFN_INPUT,
    MIXER_INPUT,
    ConvConfig,
    DFlashConfig,
    LayerPattern,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Parts:
    """Weights of one layer but for its convolutions. Norms multiply by ``w``."""

    def __init__(
        self, target: TargetParts, config: DFlashConfig, pattern: LayerPattern, prefix: str
    ) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.attention = Attention(target, config, pattern, prefix)
        self.input_scale = target.plain_scale(prefix + "input_layernorm.weight", hidden)
        self.post_scale = target.plain_scale(prefix + "post_attention_layernorm.weight", hidden)
        mlp = prefix + "mlp."
        self.gate_up = target.stack(
            {mlp + "gate_proj.weight": (inner, hidden), mlp + "up_proj.weight": (inner, hidden)},
            FFN_INPUT,
        )
        self.down = target.matrix(mlp + "down_proj.weight", (hidden, inner), FFN_INNER)


class Layers(Protocol):
    """All layers of a drafter."""

    @property
    def parts(self) -> Sequence[Parts]: ...

    def run(self, x: Tensor, caches: Sequence[KvCache], at: Rotated) -> Tensor:
        """Rows x[T, H] of blocks through all layers: their residual, before the final norm."""
        ...


def parts_of(target: TargetParts, config: DFlashConfig) -> list[Parts]:
    return [
        Parts(target, config, pattern, f"layers.{place}.")
        for place, pattern in enumerate(config.layers)
    ]


class PlainLayers:
    """DFlash: a dense stack of the Qwen3 kind."""

    def __init__(self, target: TargetParts, config: DFlashConfig, final_scale: Tensor) -> None:
        self.parts = parts_of(target, config)
        self._next = [*(part.input_scale for part in self.parts[1:]), final_scale]
        self._eps = config.rms_norm_eps
        self._ops = target.ops

    def run(self, x: Tensor, caches: Sequence[KvCache], at: Rotated) -> Tensor:
        ops, eps = self._ops, self._eps
        stream = ops.open_stream(x, self.parts[0].input_scale)
        for part, cache, scale in zip(self.parts, caches, self._next, strict=True):
            attention = part.attention
            queries = ops.norm_linear(stream, eps, attention.queries)
            keys_values = ops.norm_linear(stream, eps, attention.keys_values)
            mixed = attention.attend(queries, keys_values, cache, at)
            stream = ops.linear_add(mixed, attention.output, stream, part.post_scale)
            inner = ops.norm_swiglu(stream, eps, part.gate_up)
            stream = ops.linear_add(inner, part.down, stream, scale)
        return stream.residual


class Convolution:
    """Around one sublayer: taps of both sides are made of the sublayer's normed input."""

    def __init__(
        self, target: TargetParts, config: DFlashConfig, conv: ConvConfig, prefix: str, use: str
    ) -> None:
        hidden = config.hidden_size
        taps = 4 * (hidden // conv.group_size)
        self.base = target.vector(prefix + "base_kernel", (2, 2, hidden))
        self.projection = target.matrix(prefix + "kernel_projection.weight", (taps, hidden), use)


class ConvLayers:
    """DFlash2: ``residual += conv_out(sublayer(conv_in(norm(residual))))``, the convolutions over
    the rows of a block alone."""

    def __init__(self, target: TargetParts, config: DFlashConfig, conv: ConvConfig) -> None:
        self.parts = parts_of(target, config)
        self._convs = [
            tuple(
                Convolution(target, config, conv, f"layers.{place}.{kind}_conv.", use)
                for kind, use in (("attention", MIXER_INPUT), ("mlp", FFN_INPUT))
            )
            for place in range(len(self.parts))
        ]
        self._eps = config.rms_norm_eps
        self._ops = target.ops

    def run(self, x: Tensor, caches: Sequence[KvCache], at: Rotated) -> Tensor:
        ops, eps, width = self._ops, self._eps, at.place.rows.width
        residual, change = x, None
        for part, cache, (around_attention, around_mlp) in zip(
            self.parts, caches, self._convs, strict=True
        ):
            attention = part.attention
            normed, residual = self._read(residual, change, part.input_scale)
            taps = ops.linear_decode(normed, around_attention.projection)
            entering = ops.block_conv(normed, taps, around_attention.base, 0, width)
            queries = ops.linear_decode(entering, attention.queries)
            keys_values = ops.linear_decode(entering, attention.keys_values)
            mixed = attention.attend(queries, keys_values, cache, at)
            leaving = ops.linear_decode(mixed, attention.output)
            change = ops.block_conv(leaving, taps, around_attention.base, 1, width)
            normed, residual = ops.add_rms_norm(change, residual, part.post_scale, eps)
            taps = ops.linear_decode(normed, around_mlp.projection)
            entering = ops.block_conv(normed, taps, around_mlp.base, 0, width)
            inner = ops.swiglu(ops.linear_decode(entering, part.gate_up))
            leaving = ops.linear_decode(inner, part.down)
            change = ops.block_conv(leaving, taps, around_mlp.base, 1, width)
        assert change is not None
        return residual + change

    def _read(
        self, residual: Tensor, change: Tensor | None, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The normed input of a sublayer, and the residual that it is the norm of."""
        if change is None:
            return self._ops.rms_norm(residual, scale, self._eps), residual
        return self._ops.add_rms_norm(change, residual, scale, self._eps)
