"""Attention of a DFlash layer: over the context's features and over the rows of the block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.speculation import DraftPlace, TargetParts
from ninfer_core.ops.contracts.values import KvCache
from ninfer_spec_dflash.config import MIXER_INPUT, MIXER_OUTPUT, DFlashConfig, LayerPattern

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotated:
    """Rows at their columns: ``cos`` and ``sin`` f32[T, D / 2], over the whole head."""

    place: DraftPlace
    cos: Tensor
    sin: Tensor


class Attention:
    """Grouped-query attention without a gate, with normed and rotated queries and keys. The same
    keys and values are made of a feature row of the context and of a row of the block."""

    def __init__(
        self, target: TargetParts, config: DFlashConfig, pattern: LayerPattern, prefix: str
    ) -> None:
        hidden, size = config.hidden_size, config.head_dim
        queries, keys = (config.query_size, hidden), (config.key_size, hidden)
        block = prefix + "self_attn."
        self.queries = target.matrix(block + "q_proj.weight", queries, MIXER_INPUT)
        self.keys_values = target.stack(
            {block + "k_proj.weight": keys, block + "v_proj.weight": keys}, MIXER_INPUT
        )
        self.output = target.matrix(
            block + "o_proj.weight", (hidden, config.query_size), MIXER_OUTPUT
        )
        self._q_scale = target.plain_scale(block + "q_norm.weight", size)
        self._k_scale = target.plain_scale(block + "k_norm.weight", size)
        self._heads, self._kv, self._size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            size,
        )
        self._eps = config.rms_norm_eps
        self._pattern = pattern
        self._ops = target.ops

    def remember(self, keys_values: Tensor, cache: KvCache, at: Rotated) -> None:
        """Write keys and values [T, 2 kv D] of feature rows at their columns."""
        keys = self._split(keys_values)[0]
        self._store(keys, self._k_scale, keys_values, cache, at)

    def attend(self, queries: Tensor, keys_values: Tensor, cache: KvCache, at: Rotated) -> Tensor:
        """Rows [T, nh D] of blocks, whose own keys and values go to their columns."""
        rows = queries.shape[0]
        heads = queries.view(rows, self._heads, self._size)
        turned = self._store(heads, self._q_scale, keys_values, cache, at)
        seen = self._ops.block_attention(
            turned,
            cache,
            at.place.rows,
            self._size**-0.5,
            causal=self._pattern.causal,
            window=self._pattern.window,
        )
        return seen.reshape(rows, self._heads * self._size)

    def _store(
        self, heads: Tensor, scale: Tensor, keys_values: Tensor, cache: KvCache, at: Rotated
    ) -> Tensor:
        keys, values = self._split(keys_values)
        return self._ops.qk_norm_rope_store(
            heads,
            keys,
            values,
            scale,
            self._k_scale,
            self._eps,
            at.cos,
            at.sin,
            cache,
            at.place.kv_slots,
        )

    def _split(self, keys_values: Tensor) -> tuple[Tensor, Tensor]:
        both = keys_values.view(keys_values.shape[0], 2, self._kv, self._size)
        return both[:, 0], both[:, 1]
