"""What the device keeps per lane between units: next tokens, block tables, counts, settings."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.ops.contracts.rounds import LaneTables
from ninfer_core.ops.contracts.values import SamplingRows, TokenCounts
from ninfer_qwen3_5.program.sampler import MAX_BANNED, MAX_BIASED, sampling_rows
from ninfer_qwen3_5.program.sequence import Sequence

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ninfer_core.device.base import Arena, Device
    from ninfer_core.store.block_tables import BlockTables

_SETTING_TYPES = {"top_k": "int32", "banned_before": "int32", "seeds": "int64"}
_LISTS = {
    "bias_ids": (MAX_BIASED, "int32", -1),
    "bias": (MAX_BIASED, "float32", 0.0),
    "banned_ids": (MAX_BANNED, "int32", -1),
}


@dataclass(frozen=True, slots=True)
class LaneSizes:
    """C lanes, pages of a block table, vocabulary rows."""

    lanes: int
    pages: int
    vocab: int

    def device_bytes(self) -> int:
        """An upper bound of what :class:`LaneState` takes from its arena."""
        per_lane = self.vocab * 5 + self.pages * 4 + MAX_BIASED * 8 + MAX_BANNED * 4 + 4096
        return self.lanes * per_lane + (1 << 16)

    def pinned_bytes(self) -> int:
        per_lane = self.pages * 4 + MAX_BIASED * 8 + MAX_BANNED * 4 + 1024
        return self.lanes * per_lane + (1 << 16)


class LaneState:
    """Device tensors by execution row, with the host's shadows of those that it writes.

    A shadow is rewritten only for a row that no unit holds. A copy of what it held before may still
    be pending then, behind chunks of a sequence that has ended; the next copy follows it.
    """

    def __init__(
        self, sizes: LaneSizes, pages: int, device: Device, arena: Arena, pinned: Arena
    ) -> None:
        import torch

        self._device = device
        self._pages = pages
        lanes = sizes.lanes
        self.host_tables = pinned.take("block_tables", (lanes, sizes.pages), torch.int32).fill_(-1)
        self.tables = LaneTables(
            arena.take("tokens", (lanes,), torch.int32).zero_(),
            arena.take("block_tables", (lanes, sizes.pages), torch.int32).fill_(-1),
        )
        self.counts = TokenCounts(
            arena.take("generated", (lanes, sizes.vocab), torch.int32).zero_(),
            arena.take("prompt", (lanes, sizes.vocab), torch.bool).zero_(),
        )
        self._indices = arena.take("lanes", (lanes,), torch.int64)
        self._indices.copy_(torch.arange(lanes))
        self.once = arena.take("once", (1,), torch.int32).fill_(1)
        self.settings = _settings(lanes, arena)
        self._shadow = _settings(lanes, pinned)
        self._settings_of = [list(self._by_name(row)) for row in range(lanes)]

    def _by_name(self, row: int) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, shadow and place on the device of each setting of a row."""
        for field in fields(SamplingRows):
            name = field.name
            yield name, getattr(self._shadow, name)[row], getattr(self.settings, name)[row]

    def index(self, row: int) -> Tensor:
        """A row's number as i64[1] on the device."""
        return self._indices[row : row + 1]

    def admit(self, sequence: Sequence) -> None:
        """Take over a row: its settings, the prompt's tokens, and what it generated before."""
        import torch

        row, request = sequence.row, sequence.request
        fresh = sampling_rows([sequence])
        for name, shadow, setting in self._settings_of[row]:
            value = getattr(fresh, name)[0]
            if value.dim():
                listed, value = value, torch.full_like(shadow, _LISTS[name][2])
                value[: listed.shape[0]] = listed
            # What a shadow holds is on the device, or on its way there.
            if not torch.equal(shadow, value):
                shadow.copy_(value)
                setting.copy_(shadow, non_blocking=True)
        self.counts.generated[row].zero_()
        self.counts.prompt[row].zero_()
        if request.sampling.penalised:
            prompt = torch.from_numpy(request.prepared.token_ids).long()
            self.counts.prompt[row, self._on_device(prompt)] = True
            self.add_count(row, sequence.generated, 1)

    def add_count(self, row: int, tokens: Rows[int], amount: int) -> None:
        """Correct the counts of tokens that were accepted without a draw, or drawn in vain."""
        import torch

        if tokens:
            ids = self._on_device(torch.tensor(tokens))
            self.counts.generated[row].index_add_(0, ids, torch.full_like(ids, amount).int())

    def changes(self, tables: BlockTables, most: int) -> list[tuple[int, int, int]]:
        """Block table entries that the device does not have yet: row, column, page. More than
        ``most``, which a round can carry, go by whole rows."""
        if tables.pending > most:
            for row in tables.pending_rows():
                self.send_row(tables, row)
        changes: list[tuple[int, int, int]] = list(tables.drain())
        self.check_pages([page for _, _, page in changes])
        return changes

    def send_row(self, tables: BlockTables, row: int) -> None:
        """Copy one row of the host's block table whole, as it is when the lane comes to it."""
        self.take_row(tables, row, self.host_tables[row])

    def take_row(self, tables: BlockTables, row: int, pages: Tensor) -> None:
        """Copy one row whole from ``pages`` i32[columns]."""
        self.check_pages(tables.take_row(row))
        self.tables.block_tables[row].copy_(pages, non_blocking=True)

    def check_pages(self, pages: Rows[int]) -> None:
        """Raise EngineFailure for a page that is none: kernels would follow it anywhere."""
        if not pages or (min(pages) >= 0 and max(pages) < self._pages):
            return
        for page in pages:
            if not 0 <= page < self._pages:
                raise EngineFailure(
                    f"a block table names page {page}; there are {self._pages} pages"
                )

    def _on_device(self, ids: Tensor) -> Tensor:
        """Token ids i64 on the device; they have been read when this returns, whatever is enqueued,
        because they do not lie in pinned memory."""
        return ids.to(self._device.torch_device, non_blocking=True)


def settings_at(settings: SamplingRows, lanes: Tensor) -> SamplingRows:
    """The settings of ``lanes`` i64[B]."""
    return SamplingRows(
        *(getattr(settings, field.name).index_select(0, lanes) for field in fields(SamplingRows))
    )


def _settings(lanes: int, arena: Arena) -> SamplingRows:
    import torch

    def take(name: str) -> Tensor:
        width, kind, fill = _LISTS.get(name, (0, _SETTING_TYPES.get(name, "float32"), 0))
        dtype: torch.dtype = getattr(torch, kind)
        shape = (lanes, width) if width else (lanes,)
        return arena.take(f"settings.{name}", shape, dtype).fill_(fill)

    return SamplingRows(**{field.name: take(field.name) for field in fields(SamplingRows)})
