"""Bind the text component and prepare its parameters for a set of ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ninfer_core.artifact import Artifact, Binder, FormatRegistry
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.rope import interleaved_axes, inverse_frequencies
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.model.parameters import (
    AttentionParameters,
    GdnParameters,
    LayerParameters,
    MlpParameters,
    TextParameters,
)

if TYPE_CHECKING:
    from torch import Tensor

Named = Sequence[tuple[str, tuple[int, ...]]]


def load_text(
    artifact: Artifact, config: TextConfig, ops: Ops, formats: FormatRegistry | None = None
) -> TextParameters:
    """All text parameters. Raises ArtifactError for one that is missing, misshapen or left over."""
    loader = _TextLoader(Binder(artifact, ("text",), formats), config, ops)
    parameters = loader.load()
    loader.binder.finish()
    return parameters


class _TextLoader:
    def __init__(self, binder: Binder, config: TextConfig, ops: Ops) -> None:
        self.binder = binder
        self.config = config
        self._ops = ops

    def load(self) -> TextParameters:
        config = self.config
        shape = (config.vocab_size, config.hidden_size)
        embedding = self._matrix([("text.embed_tokens.weight", shape)])
        head = embedding
        if not config.tie_word_embeddings:
            head = self._matrix([("text.lm_head.weight", shape)])
        return TextParameters(
            embedding=embedding,
            layers=tuple(self._layer(index) for index in range(config.num_hidden_layers)),
            final_scale=self._scale("text.norm.weight", config.hidden_size),
            head=head,
            inverse_frequencies=inverse_frequencies(config.rotary_dim, config.rope_theta),
            rope_axes=interleaved_axes(config.mrope_section),
        )

    def _layer(self, index: int) -> LayerParameters:
        prefix, hidden = f"text.layers.{index}.", self.config.hidden_size
        full = self.config.layer_types[index] == "full_attention"
        return LayerParameters(
            input_scale=self._scale(prefix + "input_layernorm.weight", hidden),
            mixer=self._attention(prefix) if full else self._gdn(prefix),
            post_scale=self._scale(prefix + "post_attention_layernorm.weight", hidden),
            mlp=self._mlp(prefix + "mlp."),
        )

    def _attention(self, prefix: str) -> AttentionParameters:
        config, name = self.config, prefix + "self_attn."
        heads = config.num_attention_heads * config.head_dim
        kv = config.num_key_value_heads * config.head_dim
        hidden = config.hidden_size
        rows = (("q_proj", 2 * heads), ("k_proj", kv), ("v_proj", kv))
        return AttentionParameters(
            inputs=self._matrix([(f"{name}{part}.weight", (n, hidden)) for part, n in rows]),
            output=self._matrix([(name + "o_proj.weight", (hidden, heads))]),
            q_scale=self._scale(name + "q_norm.weight", config.head_dim),
            k_scale=self._scale(name + "k_norm.weight", config.head_dim),
        )

    def _gdn(self, prefix: str) -> GdnParameters:
        config, name = self.config, prefix + "linear_attn."
        value_heads = config.linear_num_value_heads
        values = value_heads * config.linear_value_head_dim
        channels, hidden = config.conv_channels, config.hidden_size
        rows = (("qkv", channels), ("z", values), ("b", value_heads), ("a", value_heads))
        conv = self._vector(name + "conv1d.weight", (channels, 1, 4))
        return GdnParameters(
            inputs=self._matrix(
                [(f"{name}in_proj_{part}.weight", (n, hidden)) for part, n in rows]
            ),
            output=self._matrix([(name + "out_proj.weight", (hidden, values))]),
            conv=conv.squeeze(1).t().contiguous(),
            decay_rate=self._vector(name + "A_log", (value_heads,)).exp(),
            dt_bias=self._vector(name + "dt_bias", (value_heads,)),
            norm_scale=self._vector(name + "norm.weight", (config.linear_value_head_dim,)),
        )

    def _mlp(self, prefix: str) -> MlpParameters:
        inner, hidden = self.config.intermediate_size, self.config.hidden_size
        return MlpParameters(
            inputs=self._matrix(
                [(f"{prefix}{part}_proj.weight", (inner, hidden)) for part in ("gate", "up")]
            ),
            output=self._matrix([(prefix + "down_proj.weight", (hidden, inner))]),
        )

    def _matrix(self, parameters: Named) -> WeightMatrix:
        """One matrix, several stacked by rows, in the form that the ops multiply by.

        Plain formats keep their stored precision until the ops prepare them.
        """
        bound = self.binder.stacked(parameters)
        weight = bound.to_torch()
        rows, columns = weight.shape
        plain = WeightMatrix(_plain_format(weight), rows, columns, {"weight": weight})
        return self._ops.prepare_linear(plain)

    def _vector(self, parameter: str, shape: tuple[int, ...]) -> Tensor:
        """A small parameter in fp32, whatever precision it is stored in."""
        import torch

        return self.binder.tensor(parameter, shape).to_torch(torch.float32).clone()

    def _scale(self, parameter: str, size: int) -> Tensor:
        """``1 + w``: every norm of this family but the gated one is zero-centred."""
        return 1.0 + self._vector(parameter, (size,))


def _plain_format(weight: Tensor) -> str:
    import torch

    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return names[weight.dtype]
