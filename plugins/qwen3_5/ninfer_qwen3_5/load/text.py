"""Take the parameters of the text model from a source, place them, prepare them for the ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.artifact import Artifact, ArtifactError
from ninfer_core.artifact.encoded import WEIGHT
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
    layer_shapes,
)
from ninfer_qwen3_5.load.residence import HOST, Residence
from ninfer_qwen3_5.load.source import ArtifactSource, ParameterSource, Shapes
from ninfer_qwen3_5.model.parameters import (
    AttentionParameters,
    GdnParameters,
    LayerParameters,
    MlpParameters,
    TextParameters,
)

if TYPE_CHECKING:
    from torch import Tensor


def load_text(
    artifact: Artifact, config: TextConfig, ops: Ops, residence: Residence = HOST
) -> TextParameters:
    """All text parameters of an artifact, prepared for ``ops`` where ``residence`` puts them.

    Raises ArtifactError for one that is missing, misshapen or left over.
    """
    source = ArtifactSource(artifact)
    with artifact.hashing_ahead(("text",)):
        parameters = text_parameters(source, config, ops, residence)
    source.finish()
    return parameters


def text_parameters(
    source: ParameterSource, config: TextConfig, ops: Ops, residence: Residence = HOST
) -> TextParameters:
    """All text parameters of ``source``, prepared for ``ops`` where ``residence`` puts them."""
    return TextLoader(source, config, ops, residence).load()


class TextLoader:
    """Takes parameters from a source, whole or part by part."""

    def __init__(
        self, source: ParameterSource, config: TextConfig, ops: Ops, residence: Residence = HOST
    ) -> None:
        self.config = config
        self._source = source
        self._ops = ops
        self._residence = residence
        self.bytes = 0
        """Of what was placed so far."""

    def load(self) -> TextParameters:
        config = self.config
        embedding, head = self._tables()
        frequencies = inverse_frequencies(config.rotary_dim, config.rope_theta)
        axes = interleaved_axes(config.mrope_section)
        return TextParameters(
            embedding=embedding,
            layers=tuple(
                self.layer(f"text.layers.{index}.", full=kind == FULL_ATTENTION)
                for index, kind in enumerate(config.layer_types)
            ),
            final_scale=self.scale("text.norm.weight", (config.hidden_size,)),
            head=head,
            inverse_frequencies=self._residence.vector("inverse_frequencies", frequencies),
            rope_axes=self._residence.vector("rope_axes", axes),
        )

    def _tables(self) -> tuple[WeightMatrix, WeightMatrix]:
        """Embedding and head: one prepared matrix where they are the same weights."""
        table = (self.config.vocab_size, self.config.hidden_size)
        embedding_name, head_name = "embed_tokens.weight", "lm_head.weight"
        stored = self._source.matrix("text.", {embedding_name: table}, TOKEN_IDS)
        embedding = self._prepared(f"text.{embedding_name}", stored)
        if self.config.tie_word_embeddings:
            return embedding, embedding
        other = self._source.matrix("text.", {head_name: table}, FINAL_HIDDEN)
        head = embedding if other is stored else self._prepared(f"text.{head_name}", other)
        return embedding, head

    def layer(self, prefix: str, *, full: bool) -> LayerParameters:
        """A decoder layer; ``full`` chooses its mixer."""
        shapes = layer_shapes(self.config, full=full)
        return LayerParameters(
            input_scale=self._scale_of(prefix, shapes, "input_layernorm"),
            mixer=self._attention(prefix, shapes) if full else self._gdn(prefix, shapes),
            post_scale=self._scale_of(prefix, shapes, "post_attention_layernorm"),
            mlp=MlpParameters(
                inputs=self._block(prefix, shapes, "mlp.", ("gate_proj", "up_proj"), FFN_INPUT),
                output=self._block(prefix, shapes, "mlp.", ("down_proj",), FFN_INNER),
            ),
        )

    def _attention(self, prefix: str, shapes: Shapes) -> AttentionParameters:
        block, inputs = "self_attn.", ("q_proj", "k_proj", "v_proj")
        return AttentionParameters(
            inputs=self._block(prefix, shapes, block, inputs, MIXER_INPUT),
            output=self._block(prefix, shapes, block, ("o_proj",), MIXER_OUTPUT),
            q_scale=self._scale_of(prefix, shapes, "self_attn.q_norm"),
            k_scale=self._scale_of(prefix, shapes, "self_attn.k_norm"),
        )

    def _gdn(self, prefix: str, shapes: Shapes) -> GdnParameters:
        block = "linear_attn."
        inputs = tuple(f"in_proj_{part}" for part in ("qkv", "z", "b", "a"))
        conv, decay, dt_bias, norm = (
            block + name for name in ("conv1d.weight", "A_log", "dt_bias", "norm.weight")
        )
        taps = self._source.vector(prefix + conv, shapes[conv]).squeeze(1).t().contiguous()
        decay_rate = self._source.vector(prefix + decay, shapes[decay]).exp()
        return GdnParameters(
            inputs=self._block(prefix, shapes, block, inputs, MIXER_INPUT),
            output=self._block(prefix, shapes, block, ("out_proj",), MIXER_OUTPUT),
            conv=self._residence.vector(prefix + conv, taps),
            decay_rate=self._residence.vector(prefix + decay, decay_rate),
            dt_bias=self.vector(prefix + dt_bias, shapes[dt_bias]),
            norm_scale=self.vector(prefix + norm, shapes[norm]),
        )

    def stack(self, prefix: str, shapes: Shapes, use: str) -> WeightMatrix:
        """One matrix, several stacked by rows, placed in the form that the ops multiply by."""
        stored = self._source.matrix(prefix, shapes, use)
        return self._prepared(" + ".join(prefix + name for name in shapes), stored)

    def _block(
        self, prefix: str, shapes: Shapes, block: str, parts: tuple[str, ...], use: str
    ) -> WeightMatrix:
        names = [f"{block}{part}.weight" for part in parts]
        return self.stack(prefix, {name: shapes[name] for name in names}, use)

    def _prepared(self, name: str, stored: WeightMatrix) -> WeightMatrix:
        prepared = self._ops.prepare_linear(self._residence.matrix(name, stored))
        self.bytes += sum(p.numel() * p.element_size() for p in prepared.planes.values())
        return prepared

    def _scale_of(self, prefix: str, shapes: Shapes, norm: str) -> Tensor:
        return self.scale(f"{prefix}{norm}.weight", shapes[f"{norm}.weight"])

    def scale(self, parameter: str, shape: tuple[int, ...]) -> Tensor:
        """``1 + w``: every norm of this family but the gated one is zero-centred."""
        return self.place(parameter, 1.0 + self._source.vector(parameter, shape))

    def vector(self, parameter: str, shape: tuple[int, ...]) -> Tensor:
        """A small parameter as it is stored."""
        return self.place(parameter, self._source.vector(parameter, shape))

    def table(self, prefix: str, name: str, shape: tuple[int, int]) -> Tensor:
        """A matrix whose rows are looked up, as it is stored. Raises ArtifactError for one that is
        packed."""
        stored = self._source.matrix(prefix, {name: shape}, None)
        if WEIGHT not in stored.planes:
            raise ArtifactError(
                prefix + name, f"is stored as {stored.format}", "convert it in a floating format"
            )
        placed = self._residence.matrix(prefix + name, stored).planes[WEIGHT]
        self.bytes += placed.numel() * placed.element_size()
        return placed

    def place(self, name: str, values: Tensor) -> Tensor:
        """A table beside the parameters."""
        self.bytes += values.numel() * values.element_size()
        return self._residence.vector(name, values)
