"""The keys that a drafter's ``config.json`` may have, and what is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from ninfer_core.artifact.fields import Node

DFLASH: Final = "DFlashDraftModel"
DFLASH2: Final = "DFlash2DraftModel"

MEND = "mend config.json after the one of a released DFlash drafter"
OTHER = "give a drafter without it; this version does not run such a one"
_IGNORED = frozenset(
    "_name_or_path attention_dropout auto_map bos_token_id dtype eos_token_id initializer_range "
    "max_position_embeddings max_window_layers pad_token_id tie_word_embeddings torch_dtype "
    "transformers_version use_cache".split()
)
"""Keys without a part in what the drafter computes beside its target."""

_TOP = frozenset(
    "architectures model_type hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim rms_norm_eps rope_theta rope_parameters rope_scaling layer_types "
    "sliding_window use_sliding_window sliding_window_non_causal is_causal num_target_layers "
    "vocab_size draft_vocab_size sample_from_anchor hidden_act attention_bias "
    "dflash_config".split()
)
_EITHER = frozenset(
    "block_size mask_token_id target_layer_ids aux_hidden_state_layer_ids "
    "final_logit_softcapping output_multiplier input_embedding_scale".split()
)
_NESTED = frozenset(
    "causal use_swa swa_window_size attention_sink_bias attention_value_scale".split()
)
_NESTED2 = frozenset("conv_kernel_size conv_group_size selector_rank selector_top_k".split())


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys that may stand at the top, inside ``dflash_config`` or, agreeing, in both."""

    root: Node
    nested: Node

    def find(self, name: str) -> Node | None:
        outer, inner = self.root.find(name), self.nested.find(name)
        if outer is not None and inner is not None and outer.value != inner.value:
            inner.fail(f"{inner.value!r} contradicts {outer.path}, which is {outer.value!r}")
        return inner or outer

    def need(self, name: str) -> Node:
        return self.find(name) or self.nested.need(name)


def refuse_unknown(root: Node, nested: Node, second: bool) -> None:
    for key, node in root.members():
        if key not in _TOP and key not in _EITHER and key not in _IGNORED:
            unknown(node)
    for key, node in nested.members():
        if key in _NESTED2 and not second:
            node.fail(
                f"belongs to {DFLASH2}, the file says {DFLASH}",
                f"restore the architectures of the released file: [{DFLASH2!r}]",
            )
        if key not in _EITHER and key not in _NESTED and key not in _NESTED2:
            unknown(node)


def unknown(node: Node) -> NoReturn:
    node.fail("unknown key", "remove it if it has no effect; otherwise a later version may read it")


def check_fixed(root: Node, nested: Node) -> None:
    """Keys that may have one value only."""
    only(root.find("model_type"), ("qwen3",))
    only(root.find("hidden_act"), ("silu",))
    only(root.find("attention_bias"), (False,))
    only(root.find("sample_from_anchor"), (False,))
    only(nested.find("use_swa"), (False,))
    only(nested.find("attention_sink_bias"), (False,))
    only(nested.find("attention_value_scale"), (1,))
    drafted = root.find("draft_vocab_size")
    if drafted is not None and drafted.integer(1) != root.need("vocab_size").integer(1):
        drafted.fail(f"{drafted.value} is not the target's vocabulary", OTHER)


def only(node: Node | None, allowed: Sequence[object]) -> None:
    if node is not None and node.value not in allowed:
        shown = " or ".join(repr(value) for value in allowed)
        node.fail(f"{node.value!r} is not supported, only {shown}", OTHER)
