"""Bind the text component and prepare its parameters for a set of ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.artifact import Artifact, Binder
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.rope import interleaved_axes, inverse_frequencies
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.config import FULL_ATTENTION, TextConfig
from ninfer_qwen3_5.convert.parameters import (
    FFN_INNER,
    FFN_INPUT,
    FINAL_HIDDEN,
    MIXER_INPUT,
    MIXER_OUTPUT,
    TOKEN_IDS,
    Shapes,
    layer_shapes,
)
from ninfer_qwen3_5.model.parameters import (
    AttentionParameters,
    GdnParameters,
    LayerParameters,
    MlpParameters,
    TextParameters,
)

if TYPE_CHECKING:
    from torch import Tensor


def load_text(artifact: Artifact, config: TextConfig, ops: Ops) -> TextParameters:
    """All text parameters. Raises ArtifactError for one that is missing, misshapen or left over."""
    loader = _TextLoader(Binder(artifact, ("text",)), config, ops)
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
        table = (config.vocab_size, config.hidden_size)
        embedding = self._matrix("text.", {"embed_tokens.weight": table}, TOKEN_IDS)
        head = embedding
        if not config.tie_word_embeddings:
            head = self._matrix("text.", {"lm_head.weight": table}, FINAL_HIDDEN)
        return TextParameters(
            embedding=embedding,
            layers=tuple(self._layer(index) for index in range(config.num_hidden_layers)),
            final_scale=self._scale("text.norm.weight", (config.hidden_size,)),
            head=head,
            inverse_frequencies=inverse_frequencies(config.rotary_dim, config.rope_theta),
            rope_axes=interleaved_axes(config.mrope_section),
        )

    def _layer(self, index: int) -> LayerParameters:
        prefix = f"text.layers.{index}."
        full = self.config.layer_types[index] == FULL_ATTENTION
        shapes = layer_shapes(self.config, full=full)
        return LayerParameters(
            input_scale=self._scale_of(prefix, shapes, "input_layernorm"),
            mixer=self._attention(prefix, shapes) if full else self._gdn(prefix, shapes),
            post_scale=self._scale_of(prefix, shapes, "post_attention_layernorm"),
            mlp=MlpParameters(
                inputs=self._stack(prefix, shapes, "mlp.", ("gate_proj", "up_proj"), FFN_INPUT),
                output=self._stack(prefix, shapes, "mlp.", ("down_proj",), FFN_INNER),
            ),
        )

    def _attention(self, prefix: str, shapes: Shapes) -> AttentionParameters:
        block, inputs = "self_attn.", ("q_proj", "k_proj", "v_proj")
        return AttentionParameters(
            inputs=self._stack(prefix, shapes, block, inputs, MIXER_INPUT),
            output=self._stack(prefix, shapes, block, ("o_proj",), MIXER_OUTPUT),
            q_scale=self._scale_of(prefix, shapes, "self_attn.q_norm"),
            k_scale=self._scale_of(prefix, shapes, "self_attn.k_norm"),
        )

    def _gdn(self, prefix: str, shapes: Shapes) -> GdnParameters:
        block = "linear_attn."
        inputs = tuple(f"in_proj_{part}" for part in ("qkv", "z", "b", "a"))
        small = {
            name: self._vector(prefix + block + name, shapes[block + name])
            for name in ("conv1d.weight", "A_log", "dt_bias", "norm.weight")
        }
        return GdnParameters(
            inputs=self._stack(prefix, shapes, block, inputs, MIXER_INPUT),
            output=self._stack(prefix, shapes, block, ("out_proj",), MIXER_OUTPUT),
            conv=small["conv1d.weight"].squeeze(1).t().contiguous(),
            decay_rate=small["A_log"].exp(),
            dt_bias=small["dt_bias"],
            norm_scale=small["norm.weight"],
        )

    def _stack(
        self, prefix: str, shapes: Shapes, block: str, parts: tuple[str, ...], use: str
    ) -> WeightMatrix:
        names = [f"{block}{part}.weight" for part in parts]
        return self._matrix(prefix, {name: shapes[name] for name in names}, use)

    def _scale_of(self, prefix: str, shapes: Shapes, norm: str) -> Tensor:
        return self._scale(f"{prefix}{norm}.weight", shapes[f"{norm}.weight"])

    def _matrix(self, prefix: str, shapes: Shapes, use: str) -> WeightMatrix:
        """One matrix, several stacked by rows, in the form that the ops multiply by.

        Plain formats keep their stored precision until the ops prepare them.
        """
        named = [(prefix + name, shape) for name, shape in shapes.items()]
        bound = self.binder.stacked(named, use=use)
        weight = bound.to_torch()
        rows, columns = weight.shape
        plain = WeightMatrix(_plain_format(weight), rows, columns, {"weight": weight})
        return self._ops.prepare_linear(plain)

    def _vector(self, parameter: str, shape: tuple[int, ...]) -> Tensor:
        """A small parameter in fp32, whatever precision it is stored in."""
        import torch

        return self.binder.tensor(parameter, shape).to_torch(torch.float32).clone()

    def _scale(self, parameter: str, shape: tuple[int, ...]) -> Tensor:
        """``1 + w``: every norm of this family but the gated one is zero-centred."""
        return 1.0 + self._vector(parameter, shape)


def _plain_format(weight: Tensor) -> str:
    import torch

    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return names[weight.dtype]
