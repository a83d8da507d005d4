"""How large the stores are, and the tensors behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.device.base import ALIGNMENT
from ninfer_core.errors import UsageError
from ninfer_core.ops.contracts.values import CONV_HISTORY, KvCache
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.model.state import GdnState, LayerState, ModelState

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
    def plan(budget: Budget, rounds_ahead: int = 0) -> Layout:
        """The smallest layout in which every lane can reach the full context, or what
        ``kv_tokens`` affords. Raises UsageError when one full context would not fit."""
        per_sequence = -(-budget.max_context // PAGE_TOKENS)
        pages = per_sequence * budget.max_concurrency
        if budget.kv_tokens is not None:
            pages = min(pages, -(-budget.kv_tokens // PAGE_TOKENS))
        least = max(per_sequence, budget.max_concurrency)
        if pages < least:
            raise UsageError(
                f"kv_tokens {budget.kv_tokens} gives {pages} pages of {PAGE_TOKENS} tokens; "
                f"max_context {budget.max_context} and max_concurrency "
                f"{budget.max_concurrency} need {least}",
                hint=f"raise --kv-capacity to {least * PAGE_TOKENS} or lower --max-context",
            )
        per_lane = SLOTS_PER_SEQUENCE + rounds_ahead
        slots = per_lane * budget.max_concurrency + budget.extra_state_slots
        return Layout(pages, per_sequence, slots, budget.max_concurrency, per_lane)


class StateBuilder:
    """Carves the model's mutable tensors out of two arenas, one block each."""

    def __init__(self, config: TextConfig, layout: Layout, device: Device) -> None:
        self.config = config
        self.layout = layout
        self.device = device

    def build(self) -> tuple[ModelState, dict[str, Arena]]:
        """All layers' state, zeroed, and the arenas that own it."""
        kinds = self.config.layer_types
        full = sum(kind == "full_attention" for kind in kinds)
        kv = self.device.arena("kv", max(1, full * self._kv_bytes()))
        state = self.device.arena("state", max(1, (len(kinds) - full) * self._gdn_bytes()))
        layers: list[LayerState] = [
            self._kv_cache(kv, index) if kind == "full_attention" else self._gdn_state(state, index)
            for index, kind in enumerate(kinds)
        ]
        return ModelState(tuple(layers)), {"kv": kv, "state": state}

    def _kv_shape(self) -> tuple[int, ...]:
        config = self.config
        return (self.layout.pages, PAGE_TOKENS, config.num_key_value_heads, config.head_dim)

    def _kv_cache(self, arena: Arena, layer: int) -> KvCache:
        shape = self._kv_shape()
        keys, values = (_zeros(arena, f"{layer}.{name}", shape) for name in ("keys", "values"))
        return KvCache("fp32", keys, values)

    def _gdn_shapes(self) -> dict[str, tuple[int, ...]]:
        config = self.config
        slots = self.layout.slots + SCRATCH_SLOTS
        values, channels = config.linear_num_value_heads, config.conv_channels
        key_size, value_size = config.linear_key_head_dim, config.linear_value_head_dim
        return {
            "history": (slots, CONV_HISTORY, channels),
            "recurrent": (slots, values, key_size, value_size),
        }

    def _gdn_state(self, arena: Arena, layer: int) -> GdnState:
        made = {
            name: _zeros(arena, f"{layer}.{name}", shape)
            for name, shape in self._gdn_shapes().items()
        }
        return GdnState(made["history"], made["recurrent"])

    def _kv_bytes(self) -> int:
        return 2 * _padded_bytes(self._kv_shape())

    def _gdn_bytes(self) -> int:
        return sum(_padded_bytes(shape) for shape in self._gdn_shapes().values())


def _zeros(arena: Arena, name: str, shape: tuple[int, ...]) -> Tensor:
    import torch

    return arena.take(name, shape, torch.float32).zero_()


def _padded_bytes(shape: tuple[int, ...]) -> int:
    import math

    return -(-math.prod(shape) * 4 // ALIGNMENT) * ALIGNMENT
