"""The configuration of a DFlash drafter, read key by key from its published ``config.json``.

A key stands at the top or inside ``dflash_config``; where it may stand in both, both must agree.
A key that is not known here is refused: one that is passed over costs acceptance silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.fields import Node
from ninfer_spec_dflash.keys import (
    DFLASH,
    DFLASH2,
    MEND,
    Keys,
    check_fixed,
    only,
    refuse_unknown,
    unknown,
)

COMPONENTS: Final = {DFLASH: "dflash", DFLASH2: "dflash2"}
"""The artifact's component for each class of drafter, which is also the backend's name."""

DRAFT_FEATURES: Final = "draft_features"
DRAFT_CONTEXT: Final = "draft_context"
MIXER_INPUT: Final = "mixer_input"
MIXER_OUTPUT: Final = "mixer_output"
FFN_INPUT: Final = "ffn_input"
FFN_INNER: Final = "ffn_inner"
FINAL_HIDDEN: Final = "final_hidden"
"""Inputs that the uses of a drafter's matrices name. Keys and values have two: rows of the block,
and the context's feature rows."""

FULL_ATTENTION: Final = "full_attention"
SLIDING_ATTENTION: Final = "sliding_attention"
MAX_LAYERS: Final = 64
MAX_BLOCK: Final = 256


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """What a row of the block sees: of the block, no later row if ``causal``; of everything, only
    what is less than ``window`` positions away (None for all)."""

    causal: bool
    window: int | None


@dataclass(frozen=True, slots=True)
class ConvConfig:
    """DFlash2's causal convolution over the block: taps, and channels per dynamic weight."""

    kernel_size: int
    group_size: int


@dataclass(frozen=True, slots=True)
class SelectorConfig:
    """DFlash2's candidate selector: rank of the pair score, candidates of each row."""

    rank: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig:
    """Checked configuration of one drafter.

    ``taps`` are 0-based target layers whose outputs are its features, in the order of ``fc``'s
    columns. ``block_size`` counts the anchor, so a block gives ``block_size - 1`` drafts at most.
    Draft logits are ``head(h) * output_multiplier``, then ``c tanh(. / c)`` for a
    ``logit_softcap`` c; embeddings are multiplied by ``embedding_scale``. ``conv`` and
    ``selector`` are DFlash2's. ``target_layers`` is None where the file does not say it.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerPattern, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    target_layers: int | None
    block_size: int
    taps: tuple[int, ...]
    mask_token_id: int
    logit_softcap: float | None
    output_multiplier: float
    embedding_scale: float
    conv: ConvConfig | None
    selector: SelectorConfig | None

    @property
    def component(self) -> str:
        return COMPONENTS[self.architecture]

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @classmethod
    def from_json(cls, config: Mapping[str, Any], path: str = "config.json") -> DFlashConfig:
        """Read a drafter's whole ``config.json``; ``path`` is how errors call it.

        Raises ArtifactError naming the key that is unknown, missing, malformed or asks for
        something that this version does not run.
        """
        root = Node(dict(config), path, MEND)
        architecture = _architecture(root)
        second = architecture == DFLASH2
        nested = root.need("dflash_config")
        refuse_unknown(root, nested, second)
        check_fixed(root, nested)
        keys = Keys(root, nested)
        sizes = _sizes(root)
        return cls(
            architecture=architecture,
            **sizes,
            layers=_layers(root, nested),
            rms_norm_eps=root.need("rms_norm_eps").number(),
            rope_theta=_rope_theta(root),
            target_layers=_optional_integer(root.find("num_target_layers")),
            block_size=keys.need("block_size").integer(2, MAX_BLOCK),
            taps=_taps(keys, _optional_integer(root.find("num_target_layers"))),
            mask_token_id=keys.need("mask_token_id").integer(0, sizes["vocab_size"] - 1),
            logit_softcap=_positive(keys.find("final_logit_softcapping")),
            output_multiplier=_positive(keys.find("output_multiplier")) or 1.0,
            embedding_scale=_positive(keys.find("input_embedding_scale")) or 1.0,
            conv=_conv(nested, sizes["hidden_size"]) if second else None,
            selector=_selector(nested, sizes["vocab_size"]) if second else None,
        )


def _architecture(root: Node) -> str:
    listed = root.need("architectures")
    names = [node.text() for node in listed.elements()]
    for name in names:
        if name in COMPONENTS:
            return name
    return listed.fail(
        f"{', '.join(names) or 'an empty list'} is no DFlash drafter; known are "
        f"{', '.join(COMPONENTS)}"
    )


def _sizes(root: Node) -> dict[str, int]:
    names = "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim"
    sizes = {name: root.need(name).integer(1) for name in (*names.split(), "vocab_size")}
    if sizes["num_attention_heads"] % sizes["num_key_value_heads"]:
        root.need("num_key_value_heads").fail("does not divide num_attention_heads")
    if sizes["head_dim"] % 2:
        root.need("head_dim").fail("is odd, which rotary positions do not allow")
    return sizes


def _layers(root: Node, nested: Node) -> tuple[LayerPattern, ...]:
    """A sliding layer is causal inside the block and a full one is not, unless a key says it."""
    count = root.need("num_hidden_layers").integer(1, MAX_LAYERS)
    kinds = _kinds(root, count)
    said = root.find("is_causal") or nested.find("causal")
    free = root.find("sliding_window_non_causal")
    sliding_causal = not (free is not None and free.flag())
    window = _window(root) if SLIDING_ATTENTION in kinds else None
    return tuple(
        LayerPattern(
            causal=said.flag() if said else kind == SLIDING_ATTENTION and sliding_causal,
            window=window if kind == SLIDING_ATTENTION else None,
        )
        for kind in kinds
    )


def _kinds(root: Node, count: int) -> list[str]:
    listed, used = root.find("layer_types"), root.find("use_sliding_window")
    if listed is None:
        if used is not None and used.flag():
            used.fail("is true, and layer_types does not say for which layers", MEND)
        return [FULL_ATTENTION] * count
    kinds = [node.text() for node in listed.elements()]
    if len(kinds) != count:
        listed.fail(f"has {len(kinds)} entries for {count} layers")
    for node in listed.elements():
        only(node, (FULL_ATTENTION, SLIDING_ATTENTION))
    if SLIDING_ATTENTION in kinds and used is not None and not used.flag():
        used.fail("is false, and layer_types has sliding layers", MEND)
    return kinds


def _window(root: Node) -> int:
    return root.need("sliding_window").integer(1)


def _rope_theta(root: Node) -> float:
    scaling = root.find("rope_scaling")
    if scaling is not None:
        only(scaling.find("rope_type") or scaling, ("default",))
    nested = root.find("rope_parameters")
    outer = root.find("rope_theta")
    if nested is None:
        return root.need("rope_theta").number(1.0) if outer is None else outer.number(1.0)
    for key, node in nested.members():
        if key not in ("rope_theta", "rope_type", "partial_rotary_factor"):
            unknown(node)
    only(nested.find("rope_type"), ("default",))
    only(nested.find("partial_rotary_factor"), (1,))
    theta = nested.find("rope_theta") or root.need("rope_theta")
    if outer is not None and outer.value != theta.value:
        theta.fail(f"{theta.value!r} contradicts {outer.path}, which is {outer.value!r}")
    return theta.number(1.0)


def _taps(keys: Keys, target_layers: int | None) -> tuple[int, ...]:
    """0-based layers; ``aux_hidden_state_layer_ids`` counts the embedding as number 0."""
    plain, shifted = keys.find("target_layer_ids"), keys.find("aux_hidden_state_layer_ids")
    if shifted is None:
        listed, offset = keys.need("target_layer_ids"), 0
    elif plain is None:
        listed, offset = shifted, 1
    else:
        shifted.fail(f"stands beside {plain.path}, one of the two is enough")
    last = (target_layers or MAX_LAYERS * 64) - 1
    taps = tuple(node.integer(offset, last + offset) - offset for node in listed.elements())
    if not taps or len(set(taps)) != len(taps):
        listed.fail("is empty" if not taps else "names a layer twice")
    return taps


def _conv(nested: Node, hidden: int) -> ConvConfig:
    kernel, group = nested.need("conv_kernel_size"), nested.need("conv_group_size")
    only(kernel, (2,))
    if hidden % group.integer(1):
        group.fail(f"{group.value} does not divide hidden_size {hidden}")
    return ConvConfig(kernel.integer(), group.integer())


def _selector(nested: Node, vocabulary: int) -> SelectorConfig:
    rank, top_k = nested.need("selector_rank"), nested.need("selector_top_k")
    return SelectorConfig(rank.integer(1), top_k.integer(1, min(64, vocabulary)))


def _optional_integer(node: Node | None) -> int | None:
    return None if node is None else node.integer(1)


def _positive(node: Node | None) -> float | None:
    if node is None:
        return None
    if node.number() == 0:
        node.fail("is 0")
    return node.number()


def check_fit(
    config: DFlashConfig, *, hidden_size: int, vocab_size: int, layers: int, path: str
) -> None:
    """Raise ArtifactError, naming the key in ``path``, unless the drafter fits a target."""
    facts = (
        ("hidden_size", config.hidden_size, hidden_size),
        ("vocab_size", config.vocab_size, vocab_size),
        ("num_target_layers", config.target_layers or layers, layers),
    )
    for key, own, wanted in facts:
        if own != wanted:
            raise ArtifactError(
                f"{path}.{key}", f"{own}, the target has {wanted}", "give the target's own drafter"
            )
    if max(config.taps) >= layers:
        raise ArtifactError(
            f"{path}.dflash_config.target_layer_ids",
            f"names layer {max(config.taps)}, the target has {layers}",
            "give the target's own drafter",
        )
