"""What the device keeps per lane between speculative rounds: how each goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.verifying import SettledRows
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.spec_inputs import Behind, FoldRows, SpecRows

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena

_TOKEN, _START, _REMAINING, _TAKEN, _LAST, _LIVE = range(6)
_DRAFTS = 6


class SpecLanes:
    """By execution row, i32[L, 6 + K]: the token to run next and where it stands, tokens that may
    still be produced, rows that the last round accepted and where among the hidden rows the last of
    them lies, how many rows to verify, and the drafts."""

    def __init__(self, lanes: LaneState, count: int, width: int, arena: Arena) -> None:
        import torch

        self._lanes = lanes
        self._words = arena.take("spec.next", (count, _DRAFTS + width - 1), torch.int32).zero_()
        self._once = arena.take("spec.once", (count,), torch.int32).fill_(1)

    @staticmethod
    def bytes(count: int, width: int) -> int:
        """An upper bound of what is taken from the arena."""
        return 4 * count * (width + _DRAFTS + 1) + 1024

    def resolve(self, rows: SpecRows, width: int) -> SpecRows:
        """The rows as they go on from what the rounds in flight left here."""
        import torch

        at, given = rows.lanes.long(), rows.ids.view(-1, width)
        kept, known = self._words.index_select(0, at), rows.behind == Behind.SPECULATIVE
        drawn = self._lanes.tables.tokens.index_select(0, at)
        token = torch.where(rows.behind == Behind.PLAIN, drawn, given[:, 0])
        ids = torch.where(known, kept[:, _TOKEN], token)
        if width > 1:
            drafts = kept[:, _DRAFTS : _DRAFTS + width - 1]
            behind = torch.where(known.unsqueeze(1), drafts, given[:, 1:])
            ids = torch.cat([ids.unsqueeze(1), behind], 1).flatten()
        return SpecRows(
            ids,
            torch.where(known, kept[:, _START], rows.starts),
            torch.where(known, kept[:, _LIVE], rows.live),
            rows.deltas,
            rows.slots,
            rows.lanes,
            torch.where(known, kept[:, _REMAINING], rows.remaining),
            rows.most,
            rows.behind,
            rows.places,
        )

    def leave(self, rows: SpecRows, settled: SettledRows, accepted: Tensor) -> Tensor:
        """Keep how resolved ``rows`` go on, without drafts. Returns where among the hidden rows the
        last accepted ones lie, i64[B]."""
        import torch

        taken, last = accepted + 1, rows.places + accepted
        left, once = rows.remaining - taken, self._once[: taken.shape[0]]
        words = torch.stack([settled.tokens, settled.starts[0], left, taken, last, once], 1)
        self._words[:, :_DRAFTS].index_copy_(0, rows.lanes.long(), words)
        return last.long()

    def draft(self, rows: SpecRows, drafts_BP: Tensor, live_PB: Tensor, *, block: bool) -> None:
        """Keep the drafts behind that; ``live_PB`` as in SettledRows."""
        import torch

        # A chain has a live row at the place of each draft, a block its first column besides.
        live = live_PB[0].clamp(min=1) if block else live_PB.sum(0) + 1
        words = torch.cat([live.int().unsqueeze(1), drafts_BP], 1)
        columns = self._words[:, _LIVE : _DRAFTS + drafts_BP.shape[1]]
        columns.index_copy_(0, rows.lanes.long(), words)

    def folded(self, rows: FoldRows) -> tuple[Tensor, Tensor]:
        """Counts of accepted rows and the place of the last, i32[B] each."""
        import torch

        kept = self._words.index_select(0, rows.lanes.long())
        counts = torch.where(rows.counts < 0, kept[:, _TAKEN], rows.counts)
        return counts, torch.where(rows.last < 0, kept[:, _LAST], rows.last)


def settled_rows(arena: Arena, count: int, drafts: int, *, block: bool) -> SettledRows:
    """Where the drafts of rounds of ``count`` rows begin, at fixed places."""
    import torch

    places, wide = (1, drafts + 1) if block else (drafts, 1)

    def take(name: str, *shape: int, kind: torch.dtype = torch.int32) -> Tensor:
        return arena.take(f"spec.{count}.{name}", shape, kind).zero_()

    return SettledRows(
        take("token", count),
        take("row", count, kind=torch.int64),
        take("starts", places, count),
        take("columns", places, count),
        take("positions", places, 3, count * wide),
    )


def settled_bytes(count: int, width: int) -> int:
    """An upper bound of that."""
    return 4 * count * (3 + 5 * width) + 5 * 256
