"""A released DFlash drafter, described to the converter: names, shapes, roles, uses, fusion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ninfer_core.artifact.convert.architecture import (
    ComponentSpec,
    FusionGroup,
    ParameterRole,
    ParameterSpec,
    SourceSpec,
)
from ninfer_core.artifact.model import TARGET_COMPONENT
from ninfer_core.hookspecs import TargetFacts
from ninfer_spec_dflash.config import (
    DRAFT_CONTEXT,
    DRAFT_FEATURES,
    FFN_INNER,
    FFN_INPUT,
    FINAL_HIDDEN,
    MIXER_INPUT,
    MIXER_OUTPUT,
    DFlashConfig,
    check_fit,
)

PATH: Final = "drafter's config.json"
SIDES: Final = 2
"""Convolutions stand before and behind a sublayer."""

_INPUTS = {
    "fc.weight": (DRAFT_FEATURES,),
    "self_attn.q_proj.weight": (MIXER_INPUT,),
    "self_attn.k_proj.weight": (MIXER_INPUT, DRAFT_CONTEXT),
    "self_attn.v_proj.weight": (MIXER_INPUT, DRAFT_CONTEXT),
    "self_attn.o_proj.weight": (MIXER_OUTPUT,),
    "mlp.gate_proj.weight": (FFN_INPUT,),
    "mlp.up_proj.weight": (FFN_INPUT,),
    "mlp.down_proj.weight": (FFN_INNER,),
    "attention_conv.kernel_projection.weight": (MIXER_INPUT,),
    "mlp_conv.kernel_projection.weight": (FFN_INPUT,),
    "candidate_selector.hidden_projection.weight": (FINAL_HIDDEN,),
}
_CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
_FUSED = {
    "self_attn.qkv_proj.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "mlp.gate_up_proj.weight": tuple(f"mlp.{part}_proj.weight" for part in ("gate", "up")),
}
_COPIES = {
    "embed_tokens.weight": ("text.embed_tokens.weight",),
    "lm_head.weight": ("text.lm_head.weight", "text.embed_tokens.weight"),
}
_SHORTLIST = "maps a draft vocabulary of its own, which this version does not run"
_REFUSED = {
    "d2t": _SHORTLIST,
    "t2d": _SHORTLIST,
    "mask_embedding": "replaces the mask's embedding, which this version does not run",
}


def describe(config: Mapping[str, Any], target: TargetFacts) -> ComponentSpec:
    """The component of a drafter's ``config.json``, which becomes its configuration as it stands.

    Raises ArtifactError naming the key that is unknown, malformed or does not fit ``target``.
    """
    checked = DFlashConfig.from_json(config, PATH)
    check_fit(
        checked,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        layers=target.layers,
        path=PATH,
    )
    name = checked.component
    parameters = tuple(_parameter(name, key, shape) for key, shape in shapes(checked))
    return ComponentSpec(
        name=name,
        target=TARGET_COMPONENT,
        config=dict(config),
        parameters=parameters,
        groups=tuple(_groups(name, len(checked.layers))),
        copies=_COPIES,
        refused=_REFUSED,
    )


def shapes(config: DFlashConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(key, shape) of every tensor: 3, 11 a layer, and DFlash2's 4 a layer and 3."""
    hidden = config.hidden_size
    yield "fc.weight", (hidden, len(config.taps) * hidden)
    yield "hidden_norm.weight", (hidden,)
    for index in range(len(config.layers)):
        for key, shape in _layer_shapes(config):
            yield f"layers.{index}.{key}", shape
    yield "norm.weight", (hidden,)
    if config.selector is not None:
        rank = config.selector.rank
        yield "candidate_selector.hidden_projection.weight", (rank, hidden)
        for key in _CODEBOOKS:
            yield key, (config.vocab_size, rank)


def _layer_shapes(config: DFlashConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    yield "input_layernorm.weight", (hidden,)
    yield "self_attn.q_proj.weight", (config.query_size, hidden)
    yield "self_attn.k_proj.weight", (config.key_size, hidden)
    yield "self_attn.v_proj.weight", (config.key_size, hidden)
    yield "self_attn.o_proj.weight", (hidden, config.query_size)
    yield "self_attn.q_norm.weight", (head,)
    yield "self_attn.k_norm.weight", (head,)
    yield "post_attention_layernorm.weight", (hidden,)
    yield "mlp.gate_proj.weight", (inner, hidden)
    yield "mlp.up_proj.weight", (inner, hidden)
    yield "mlp.down_proj.weight", (hidden, inner)
    if config.conv is not None:
        taps, groups = config.conv.kernel_size, hidden // config.conv.group_size
        for place in ("attention_conv", "mlp_conv"):
            yield f"{place}.base_kernel", (SIDES, taps, hidden)
            yield f"{place}.kernel_projection.weight", (SIDES * taps * groups, hidden)


def _parameter(component: str, key: str, shape: tuple[int, ...]) -> ParameterSpec:
    local = key.split(".", 2)[2] if key.startswith("layers.") else key
    inputs = _INPUTS.get(local, ())
    if key in _CODEBOOKS:
        role = ParameterRole.CODEBOOK
    else:
        role = ParameterRole.MATRIX if inputs else ParameterRole.VECTOR
    return ParameterSpec(f"{component}.{key}", shape, role, (SourceSpec(key, shape),), inputs)


def _groups(component: str, layers: int) -> Iterator[FusionGroup]:
    for index in range(layers):
        prefix = f"{component}.layers.{index}."
        for fused, members in _FUSED.items():
            yield FusionGroup(prefix + fused, tuple(prefix + member for member in members))
