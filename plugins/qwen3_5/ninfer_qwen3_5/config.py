"""The text configuration of a Qwen3.5 checkpoint, read key by key from its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_core.artifact.fields import Node

ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
MOE_ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"
CONV_TAPS = 4
MAX_LAYERS = 4096

_MODEL_TYPES = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_MEND = "mend config.json after the one of a released Qwen3.5 model"
_OTHER = "give a Qwen3.5 checkpoint; another architecture needs the plug-in that provides it"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Sizes of the mixture-of-experts feed-forward."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """Checked text configuration; names are those of ``config.json``.

    ``intermediate_size`` is 0 where ``moe`` is set. ``layer_types`` has one of
    ``full_attention`` and ``linear_attention`` per layer. ``mrope_section`` counts rotary
    frequencies for time, height and width. ``eos_token_ids`` are those of this file alone.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    layer_types: tuple[str, ...]
    rms_norm_eps: float
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int]
    max_position_embeddings: int
    tie_word_embeddings: bool
    intermediate_size: int
    moe: MoeConfig | None
    mtp_num_hidden_layers: int
    mtp_use_dedicated_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of a head that are rotated."""
        return 2 * sum(self.mrope_section)

    @property
    def linear_key_dim(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: queries, keys and values of all heads."""
        return 2 * self.linear_key_dim + self.linear_value_dim

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> TextConfig:
        """Read the whole ``config.json``: nested (``text_config``) or flat (text keys on top).

        Unknown keys are ignored. Raises ArtifactError naming the key that is missing, malformed
        or asks for something that this architecture does not have.
        """
        root = Node(dict(config), "", _MEND)
        text = root.find("text_config") or root
        architecture = _architecture(root)
        _check_fixed(text)
        sizes = _sizes(text)
        tied = root.find("tie_word_embeddings") or text.need("tie_word_embeddings")
        moe = _moe(text)
        return cls(
            architecture=architecture,
            **sizes,
            **_rope(text, sizes["head_dim"]),
            layer_types=_layer_types(text, sizes["num_hidden_layers"]),
            rms_norm_eps=text.need("rms_norm_eps").number(),
            tie_word_embeddings=tied.flag(),
            intermediate_size=0 if moe else text.need("intermediate_size").integer(1),
            moe=moe,
            **_mtp(text),
            eos_token_ids=_token_ids(text.find("eos_token_id")),
        )


def _architecture(root: Node) -> str:
    """The class name, from ``architectures`` or, without that list, from ``model_type``."""
    model_type = root.need("model_type")
    if model_type.text() not in _MODEL_TYPES:
        model_type.fail(f"{model_type.value!r} is none of {', '.join(_MODEL_TYPES)}", _OTHER)
    listed = root.find("architectures")
    if listed is None or not listed.elements():
        return "Qwen3_5MoeForCausalLM" if "moe" in model_type.value else "Qwen3_5ForCausalLM"
    first = listed.elements()[0]
    known = ARCHITECTURES + MOE_ARCHITECTURES
    if first.text() not in known:
        first.fail(f"{first.value!r} is none of {', '.join(known)}", _OTHER)
    return first.text()


_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "mamba_ssm_dtype": ("float32",),
    "mlp_only_layers": ([],),
}
"""Optional keys and the values that the formulas of this architecture are written for."""


def _check_fixed(text: Node) -> None:
    for key, allowed in _FIXED.items():
        node = text.find(key)
        if node is not None and node.value not in allowed:
            wanted = " or ".join(repr(value) for value in allowed)
            node.fail(f"{node.value!r} is not supported, only {wanted} is")
    taps = text.need("linear_conv_kernel_dim")
    if taps.integer(1) != CONV_TAPS:
        taps.fail(f"{taps.value} is not supported, only {CONV_TAPS} is")


_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "linear_num_key_heads", "linear_num_value_heads"),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
    "max_position_embeddings",
)


def _sizes(text: Node) -> dict[str, Any]:
    sizes = {key: text.need(key).integer(1) for key in _SIZES}
    text.need("num_hidden_layers").integer(1, MAX_LAYERS)
    for heads, shared in (
        ("num_attention_heads", "num_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        if sizes[heads] % sizes[shared]:
            text.need(heads).fail(f"{sizes[heads]} is no multiple of {shared} {sizes[shared]}")
    return sizes


def _layer_types(text: Node, count: int) -> tuple[str, ...]:
    """The explicit list, else every ``full_attention_interval``-th layer is full attention."""
    listed = text.find("layer_types")
    if listed is None:
        interval = text.find("full_attention_interval") or text.need("layer_types")
        step = interval.integer(1)
        return tuple(LINEAR_ATTENTION if (i + 1) % step else FULL_ATTENTION for i in range(count))
    kinds = listed.elements()
    if len(kinds) != count:
        listed.fail(f"has {len(kinds)} entries for {count} layers")
    for kind in kinds:
        if kind.value not in (FULL_ATTENTION, LINEAR_ATTENTION):
            kind.fail(f"{kind.value!r} is neither {FULL_ATTENTION!r} nor {LINEAR_ATTENTION!r}")
    return tuple(kind.text() for kind in kinds)


def _rope(text: Node, head_dim: int) -> dict[str, Any]:
    rope = text.need("rope_parameters")
    kind = rope.find("rope_type")
    if kind is not None and kind.value != "default":
        kind.fail(f"{kind.value!r} is not supported", "set it to 'default'")
    factor = _partial_factor(text, rope)
    section = _mrope_section(rope)
    if 2 * sum(section) != head_dim * factor:
        rope.need("mrope_section").fail(
            f"{list(section)} sums to {sum(section)}, but head_dim {head_dim} with "
            f"partial_rotary_factor {factor} has {head_dim * factor / 2:g} frequencies"
        )
    return {
        "rope_theta": rope.need("rope_theta").number(1.0),
        "partial_rotary_factor": factor,
        "mrope_section": section,
    }


def _partial_factor(text: Node, rope: Node) -> float:
    """The share of a head that is rotated; stands in ``rope_parameters`` or beside it."""
    inner, outer = rope.find("partial_rotary_factor"), text.find("partial_rotary_factor")
    if inner and outer and inner.value != outer.value:
        outer.fail(f"{outer.value} contradicts {inner.path} {inner.value}")
    return (inner or outer or rope.need("partial_rotary_factor")).number(0.0, 1.0)


def _mrope_section(rope: Node) -> tuple[int, int, int]:
    interleaved = rope.find("mrope_interleaved")
    if interleaved is not None and not interleaved.flag():
        interleaved.fail("false is not supported, only true is")
    listed = rope.need("mrope_section")
    counts = [node.integer() for node in listed.elements()]
    if len(counts) != 3:
        listed.fail(f"has {len(counts)} entries, 3 are needed: time, height, width")
    return counts[0], counts[1], counts[2]


def _moe(text: Node) -> MoeConfig | None:
    if text.find("num_experts") is None:
        return None
    keys = MoeConfig.__dataclass_fields__
    moe = MoeConfig(**{key: text.need(key).integer(1) for key in keys})
    if moe.num_experts_per_tok > moe.num_experts:
        text.need("num_experts_per_tok").fail(
            f"{moe.num_experts_per_tok} exceeds num_experts {moe.num_experts}"
        )
    return moe


def _mtp(text: Node) -> dict[str, Any]:
    layers = text.find("mtp_num_hidden_layers")
    dedicated = text.find("mtp_use_dedicated_embeddings")
    return {
        "mtp_num_hidden_layers": layers.integer() if layers else 0,
        "mtp_use_dedicated_embeddings": dedicated.flag() if dedicated else False,
    }


def _token_ids(node: Node | None) -> tuple[int, ...]:
    if node is None:
        return ()
    entries = node.elements() if isinstance(node.value, list) else [node]
    return tuple(entry.integer() for entry in entries)
