"""The logical parameters of a dense Qwen3.5 model: names, shapes, sources, uses and fusion.

Logical names are the checkpoint's names with the model prefix replaced by the component
(``text.layers.3.self_attn.q_proj.weight``, ``mtp.fc.weight``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ninfer_core.artifact.convert import (
    FusionGroup,
    ParameterRole,
    ParameterSpec,
    SourceSpec,
)
from ninfer_qwen3_5.config import FULL_ATTENTION, TextConfig

Shapes = Mapping[str, tuple[int, ...]]

TOKEN_IDS = "token_ids"
MIXER_INPUT = "mixer_input"
MIXER_OUTPUT = "mixer_output"
FFN_INPUT = "ffn_input"
FFN_INNER = "ffn_inner"
FINAL_HIDDEN = "final_hidden"
MTP_INPUT = "mtp_input"
"""Inputs that uses name: normed layer input, mixer output before its projection, and so on."""

_INPUTS = {
    "self_attn.q_proj.weight": MIXER_INPUT,
    "self_attn.k_proj.weight": MIXER_INPUT,
    "self_attn.v_proj.weight": MIXER_INPUT,
    "self_attn.o_proj.weight": MIXER_OUTPUT,
    "linear_attn.in_proj_qkv.weight": MIXER_INPUT,
    "linear_attn.in_proj_z.weight": MIXER_INPUT,
    "linear_attn.in_proj_b.weight": MIXER_INPUT,
    "linear_attn.in_proj_a.weight": MIXER_INPUT,
    "linear_attn.out_proj.weight": MIXER_OUTPUT,
    "mlp.gate_proj.weight": FFN_INPUT,
    "mlp.up_proj.weight": FFN_INPUT,
    "mlp.down_proj.weight": FFN_INNER,
    "fc.weight": MTP_INPUT,
}

_FUSED = {
    "self_attn.qkv_proj.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "linear_attn.in_proj.weight": tuple(
        f"linear_attn.in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")
    ),
    "mlp.gate_up_proj.weight": tuple(f"mlp.{part}_proj.weight" for part in ("gate", "up")),
}
"""Projections of one input: rows of one parent, in the order in which fused calls read them."""


def text_parameters(config: TextConfig) -> tuple[ParameterSpec, ...]:
    """Embedding, layers, final norm and head; a tied head is a second use of the embedding."""
    table = (config.vocab_size, config.hidden_size)
    tied = config.tie_word_embeddings
    embedding_inputs = (TOKEN_IDS, FINAL_HIDDEN) if tied else (TOKEN_IDS,)
    parameters = [
        _parameter("text", "embed_tokens.weight", table, ParameterRole.TABLE, embedding_inputs)
    ]
    for index, kind in enumerate(config.layer_types):
        shapes = layer_shapes(config, full=kind == FULL_ATTENTION)
        parameters.extend(_layer("text", f"layers.{index}.", shapes))
    parameters.append(_plain("text", "norm.weight", (config.hidden_size,)))
    if not tied:
        parameters.append(
            _parameter("text", "lm_head.weight", table, ParameterRole.TABLE, (FINAL_HIDDEN,))
        )
    return tuple(parameters)


def mtp_parameters(config: TextConfig) -> tuple[ParameterSpec, ...]:
    """The 15 tensors of the multi-token prediction head; embedding and head are the text's."""
    hidden = config.hidden_size
    return (
        _plain("mtp", "pre_fc_norm_embedding.weight", (hidden,)),
        _plain("mtp", "pre_fc_norm_hidden.weight", (hidden,)),
        _plain("mtp", "fc.weight", (hidden, 2 * hidden)),
        *_layer("mtp", "layers.0.", layer_shapes(config, full=True)),
        _plain("mtp", "norm.weight", (hidden,)),
    )


def fusion_groups(parameters: Iterable[ParameterSpec]) -> tuple[FusionGroup, ...]:
    """One group for every parameter that is the first of a fused projection."""
    return tuple(
        FusionGroup(prefix + fused, tuple(prefix + member for member in members))
        for parameter in parameters
        for fused, members in _FUSED.items()
        if (prefix := parameter.name.removesuffix(members[0])) != parameter.name
    )


def layer_shapes(config: TextConfig, *, full: bool) -> Shapes:
    """Shapes of one decoder layer by key; ``full`` chooses its mixer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        "input_layernorm.weight": (hidden,),
        **(_attention_shapes(config) if full else _gdn_shapes(config)),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def _attention_shapes(config: TextConfig) -> Shapes:
    hidden, size = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
    return {
        "self_attn.q_proj.weight": (2 * queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (size,),
        "self_attn.k_norm.weight": (size,),
    }


def _gdn_shapes(config: TextConfig) -> Shapes:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    return {
        "linear_attn.in_proj_qkv.weight": (config.conv_channels, hidden),
        "linear_attn.in_proj_z.weight": (config.linear_value_dim, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (config.conv_channels, 1, config.linear_conv_kernel_dim),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (config.linear_value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, config.linear_value_dim),
    }


def _layer(component: str, prefix: str, shapes: Shapes) -> list[ParameterSpec]:
    return [_plain(component, prefix + key, shape) for key, shape in shapes.items()]


def _plain(component: str, key: str, shape: tuple[int, ...]) -> ParameterSpec:
    """A parameter whose role follows from its rank and whose use follows from its key."""
    role = ParameterRole.VECTOR if len(shape) == 1 else ParameterRole.MATRIX
    local = key.split(".", 2)[2] if key.startswith("layers.") else key
    inputs = (_INPUTS[local],) if local in _INPUTS else ()
    return _parameter(component, key, shape, role, inputs)


def _parameter(
    component: str,
    key: str,
    shape: tuple[int, ...],
    role: ParameterRole,
    inputs: tuple[str, ...],
) -> ParameterSpec:
    return ParameterSpec(f"{component}.{key}", shape, role, (SourceSpec(key, shape),), inputs)
