"""How large the stores are, and the tensors behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.contract.speculation import CacheShape
from ninfer_core.device.base import ALIGNMENT
from ninfer_core.errors import UsageError
from ninfer_core.ops.contracts.values import CONV_HISTORY, GdnRecords, KvCache
from ninfer_qwen3_5.config import FULL_ATTENTION, TextConfig
from ninfer_qwen3_5.model.state import GdnState, LayerState, ModelState
from ninfer_qwen3_5.program.drafting import NO_DRAFTS, DraftRoom
from ninfer_qwen3_5.program.kept_room import KeptRoom, lane_pages

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena, Device

SLOTS_PER_SEQUENCE = 2
"""The committed state, and the slot in which the unit in flight builds the next one; one more for
each round that may be launched ahead."""
SCRATCH_SLOTS = 1
"""A last row of the tensors that is never allocated: padding rows of a unit may write there."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Counts fixed at start."""

    pages: int
    pages_per_sequence: int
    slots: int
    rows: int
    slots_per_sequence: int = SLOTS_PER_SEQUENCE

    @staticmethod
    def plan(
        budget: Budget,
        rounds_ahead: int = 0,
        page_limit: int | None = None,
        kept: KeptRoom | None = None,
    ) -> Layout:
        """The smallest layout in which every lane can reach the full context beside what is
        ``kept``, or what ``kv_tokens`` or the memory's ``page_limit`` affords. Raises UsageError
        when one full context would not fit."""
        kept = kept or KeptRoom(budget.extra_state_slots or 0)
        per_sequence = -(-budget.max_context // PAGE_TOKENS)
        pages = lane_pages(budget) + kept.pages
        if budget.kv_tokens is not None:
            asked = -(-budget.kv_tokens // PAGE_TOKENS)
            pages = asked if budget.keep_checkpoints else min(pages, asked)
        if page_limit is not None:
            pages = min(pages, page_limit)
        least = max(per_sequence, budget.max_concurrency)
        if pages < least:
            raise UsageError(
                f"{_limiter(budget, pages, page_limit)} gives {pages} pages of "
                f"{PAGE_TOKENS} tokens; max_context {budget.max_context} and "
                f"max_concurrency {budget.max_concurrency} need {least}",
                hint="lower --max-context or --max-concurrency"
                if page_limit is not None and pages == page_limit
                else f"raise --kv-capacity to {least * PAGE_TOKENS} or lower --max-context",
            )
        per_lane = SLOTS_PER_SEQUENCE + rounds_ahead
        slots = per_lane * budget.max_concurrency + kept.slots
        return Layout(pages, per_sequence, slots, budget.max_concurrency, per_lane)


@dataclass(frozen=True, slots=True)
class KvElements:
    """How a cache format stores a head: the torch dtype of its elements, and how many of them share
    a scale (0 where there is none, -1 for the whole head)."""

    dtype: str
    group: int = 0

    def scales(self, head_size: int) -> int:
        """fp32 scales of one head."""
        if not self.group:
            return 0
        return 1 if self.group < 0 else head_size // self.group


KV_ELEMENTS = {
    "fp32": KvElements("float32"),
    "bf16": KvElements("bfloat16"),
    "int8": KvElements("int8", 64),
    "fp8": KvElements("float8_e4m3fn", -1),
}


@dataclass(frozen=True, slots=True)
class Numerics:
    """Element types: ``activation`` names the torch dtype of activations and convolution history,
    ``kv_format`` is the cache's (see ``KvCache``)."""

    activation: str = "float32"
    kv_format: str = "fp32"


class StateBuilder:
    """Carves the model's mutable tensors out of two arenas, one block each."""

    def __init__(
        self,
        config: TextConfig,
        layout: Layout,
        device: Device,
        numerics: Numerics | None = None,
        draft: DraftRoom = NO_DRAFTS,
    ) -> None:
        self.draft = draft
        self.config = config
        self.layout = layout
        self.device = device
        self.numerics = numerics or Numerics()

    def build(self) -> tuple[ModelState, dict[str, Arena]]:
        """All layers' state, zeroed, and the arenas that own it."""
        kinds = self.config.layer_types
        sizes = state_sizes(self.config, self.numerics, self.draft)
        slots = self.layout.slots + SCRATCH_SLOTS
        slack = _slack(len(kinds) + len(self.draft.caches) + 1)
        kv = self.device.arena("kv", max(1, self.layout.pages * sizes.page) + slack)
        state = self.device.arena("state", max(1, slots * sizes.slot) + slack)
        records: Arena | None = None
        if self.draft.rows:
            records = self.device.arena("records", slots * sizes.records + slack)
        whole, own = self._stacked(state, records, slots), own_cache(self.config)
        recurrent = whole.by_layer()
        layers: list[LayerState] = [
            self._kv_cache(kv, index, own) if kind == FULL_ATTENTION else next(recurrent)
            for index, kind in enumerate(kinds)
        ]
        if records is None:
            return ModelState(tuple(layers), whole), {"kv": kv, "state": state}
        drafted = tuple(
            self._kv_cache(kv, len(kinds) + n, shape) for n, shape in enumerate(self.draft.caches)
        )
        size, hidden = self.config.hidden_size, None
        if self.draft.hidden:
            hidden = _zeros(state, "hidden", (slots, size), self.numerics.activation)
        made = ModelState(tuple(layers), whole, drafted, hidden)
        return made, {"kv": kv, "state": state, "records": records}

    def _records(self, arena: Arena, layers: int, slots: int) -> GdnRecords:
        config, rows = self.config, self.draft.rows
        heads, size = config.linear_num_value_heads, config.linear_value_head_dim
        keys = (config.linear_num_key_heads, config.linear_key_head_dim)

        def take(kind: str, *shape: int, dtype: str = "float32") -> Tensor:
            return _zeros(arena, kind, (layers, slots, rows, *shape), dtype)

        return GdnRecords(
            inputs=take("inputs", config.conv_channels, dtype=self.numerics.activation),
            keys=take("keys", *keys),
            updates=take("updates", heads, size),
            keep=take("keep", heads),
        )

    def _kv_cache(self, arena: Arena, layer: int, cache: CacheShape) -> KvCache:
        shape = (self.layout.pages, PAGE_TOKENS, cache.kv_heads, cache.head_size)
        elements = KV_ELEMENTS[self.numerics.kv_format]

        def take(kind: str) -> Tensor:
            return _zeros(arena, f"{layer}.{kind}", shape, elements.dtype)

        keys, values = take("keys"), take("values")
        count = elements.scales(cache.head_size)
        if not count:
            return KvCache(self.numerics.kv_format, keys, values)
        scales = [
            _zeros(arena, f"{layer}.{kind}_scales", (*shape[:3], count), "float32")
            for kind in ("key", "value")
        ]
        return KvCache(self.numerics.kv_format, keys, values, *scales)

    def _stacked(self, arena: Arena, records: Arena | None, slots: int) -> GdnState:
        """The layers in one tensor of each kind, so that a slot is copied or folded at once."""
        config = self.config
        count = sum(kind != FULL_ATTENTION for kind in config.layer_types)
        heads, key_size = config.linear_num_value_heads, config.linear_key_head_dim
        history = _zeros(
            arena,
            "history",
            (count, slots, CONV_HISTORY, config.conv_channels),
            self.numerics.activation,
        )
        recurrent = _zeros(
            arena,
            "recurrent",
            (count, slots, heads, key_size, config.linear_value_head_dim),
            "float32",
        )
        if records is None:
            return GdnState(history, recurrent)
        return GdnState(history, recurrent, self._records(records, count, slots))


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes of one page and one state slot over all layers; ``records`` are those beside a slot
    that no image of it holds."""

    page: int
    slot: int
    records: int = 0

    @property
    def resident(self) -> int:
        """Bytes of a slot on the device."""
        return self.slot + self.records


def state_sizes(config: TextConfig, numerics: Numerics, draft: DraftRoom = NO_DRAFTS) -> StateSizes:
    """By formula, before anything is allocated. Raises UsageError for a drafter's heads that the
    cache format cannot hold."""
    _check_heads(numerics, draft)
    full = sum(kind == FULL_ATTENTION for kind in config.layer_types)
    hidden = config.hidden_size * _itemsize(numerics.activation) if draft.hidden else 0
    caches = [*[own_cache(config)] * full, *draft.caches]
    page = sum(cache_bytes(cache, numerics) for cache in caches)
    state = 4 * config.linear_num_value_heads * config.linear_key_head_dim
    history = CONV_HISTORY * config.conv_channels * _itemsize(numerics.activation)
    slot = (len(config.layer_types) - full) * (state * config.linear_value_head_dim + history)
    return StateSizes(page, slot + hidden, record_bytes(config, numerics, draft))


def own_cache(config: TextConfig) -> CacheShape:
    """The caches of the target's own layers."""
    return CacheShape(config.num_key_value_heads, config.head_dim)


def _check_heads(numerics: Numerics, draft: DraftRoom) -> None:
    group = KV_ELEMENTS[numerics.kv_format].group
    for cache in draft.caches:
        if group > 0 and cache.head_size % group:
            raise UsageError(
                f"kv_format {numerics.kv_format} takes heads of multiples of {group}; the "
                f"drafter's have {cache.head_size}",
                hint="give --kv-dtype bf16 or fp8, or leave it out",
            )


def cache_bytes(cache: CacheShape, numerics: Numerics) -> int:
    """What one page of it takes."""
    elements, size = KV_ELEMENTS[numerics.kv_format], cache.head_size
    row = size * _itemsize(elements.dtype) + 4 * elements.scales(size)
    return 2 * PAGE_TOKENS * cache.kv_heads * row


def record_bytes(config: TextConfig, numerics: Numerics, draft: DraftRoom) -> int:
    """What the verify records of a state slot need."""
    recurrent = sum(kind != FULL_ATTENTION for kind in config.layer_types)
    heads, values = config.linear_num_value_heads, config.linear_value_dim
    row = config.conv_channels * _itemsize(numerics.activation)
    row += 4 * (config.linear_key_dim + values + heads)
    return draft.rows * recurrent * row


def _limiter(budget: Budget, pages: int, page_limit: int | None) -> str:
    if pages == page_limit:
        return "the device's free memory"
    return f"kv_tokens {budget.kv_tokens}"


def _slack(layers: int) -> int:
    """Room for the alignment of every tensor of an arena."""
    return 4 * ALIGNMENT * (layers + 1)


def _itemsize(dtype: str) -> int:
    import torch

    return int(getattr(torch, dtype).itemsize)


def _zeros(arena: Arena, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    import torch

    return arena.take(name, shape, getattr(torch, dtype)).zero_()
