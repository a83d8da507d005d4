"""What a walk over the stores knows, and how it opens and settles transactions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ninfer_core.contract.checkpoints import (
    Aborted,
    BindRequest,
    CheckpointAction,
    Plan,
)
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.resources import NeverFits, Shortfall
from ninfer_core.contract.units import (
    Permit,
)
from ninfer_core.device.errors import DeviceError
from tests.model.stores.contents import Contents
from tests.model.stores.ledger import RING, Ledger, Owner, Page, pages_of
from tests.model.stores.units import BYTES, build

CHUNK, LANES, SLOTS, PAGES, HOST = 48, 3, 8, 9, 9
DELETE, DEMOTE = CheckpointAction.DELETE, CheckpointAction.DEMOTE
DROP_DEVICE, DROP_HOST = CheckpointAction.DROP_DEVICE, CheckpointAction.DROP_HOST
Need = tuple[int, int, int]
AXES = ("state_slots", "main", "host_bytes")


@dataclass(eq=False)
class Row:
    """One request: its prompt, what it said, and the frontier that it once had."""

    request: BindRequest
    owner: Owner
    handle: Any = None
    said: list[int] = field(default_factory=list)
    reached: int = 0

    @property
    def ledger(self) -> list[int]:
        return [*self.request.prepared.token_ids.tolist(), *self.said]

    @property
    def frontier(self) -> int:
        return len(self.owner.tokens)


@dataclass
class Moving:
    """The open transaction, whom it moves, and what its success means."""

    transaction: Any
    subject: object
    apply: Callable[[Any], None]


class Walk:
    """A Program, its ledger, and who is where."""

    def __init__(self, seed: int, lag: int = 3) -> None:
        budget = Budget(
            max_context=256,
            max_concurrency=LANES,
            prefill_chunk=CHUNK,
            kv_tokens=64 * PAGES,
            extra_state_slots=SLOTS,
            host_bytes=HOST * BYTES,
            keep_checkpoints=True,
        )
        self.random = random.Random(seed)
        self.program, self.units, self.transfers = build(budget, lag)
        self.ledger = Ledger(RING * LANES + SLOTS, PAGES, HOST * BYTES)
        self.rows: list[Row] = []
        self.kept: dict[Any, Owner] = {}
        self.snapshots: dict[Any, Row] = {}
        self.replays: dict[Any, Row] = {}
        self.moving: Moving | None = None
        self.done: Counter[str] = Counter()
        self.contents = Contents(self.program, self.units, self.transfers)
        self._order = 0

    def _keep(self, ref: Any, tokens: list[int], pages: list[Page]) -> None:
        owner = Owner(tokens, pages[: pages_of(len(tokens))], slots=1)
        self.ledger.owners.append(owner)
        self.kept[ref] = owner

    def _forget(self, row: Row) -> None:
        row.reached = max(row.reached, row.frontier)
        row.owner = Owner([], [])

    def _reach(self, row: Row) -> int:
        """The end of the first new unit."""
        at, length = max(row.reached, row.frontier), row.request.prepared.length
        if at >= length:
            return at + 1
        ends = [length, *(point.frontier for point in row.request.prepared.restore_points)]
        return min([(at // CHUNK + 1) * CHUNK, *(end for end in ends if end > at)])

    def _run_on(self, owner: Owner) -> None:
        """It writes on from its frontier."""
        if not self.ledger.own_tail(owner, len(owner.tokens)):
            owner.pages[-1] = Page()
        owner.slots, owner.runs = RING, True

    def _open(
        self, plan: Any, subject: object, source: Owner, need: Need, apply: Callable[[Any], None]
    ) -> None:
        """Begin, sometimes with a copy that will fail or a cancel before it starts."""
        transaction = self.program.begin(plan)
        self.moving = Moving(transaction, subject, apply)
        trouble = self.random.random()
        if trouble < 0.05:
            transaction.cancel()
        step = self.random.choice(["state", "pages", "landed"])
        self.transfers.faults = _failing(step) if 0.05 < trouble < 0.15 else lambda at: None
        self.ledger.reserved = need
        pages = source.pages[: pages_of(len(source.tokens))]
        self.ledger.pinned = list(pages)
        columns = [(page, source.columns(index)) for index, page in enumerate(pages)]
        if need[2]:
            self.ledger.relied = [page for page, count in columns if page.host >= count]
        self._settle(transaction.advance())

    def _settle(self, result: Any) -> None:
        if result is None:
            return
        assert self.moving is not None
        moving, self.moving = self.moving, None
        self.ledger.reserved = (0, 0, 0)
        if isinstance(result, Aborted):
            self.done["aborted"] += 1
        else:
            moving.apply(result)
        self.ledger.settle()

    def _refused(self, answer: Any, need: Need) -> bool:
        """Whether the answer is a refusal, which it is exactly when the model says so."""
        self.ledger.tidy()
        totals = (self.ledger.slots, self.ledger.pages, self.ledger.host)
        for axis, wanted, whole in zip(AXES, need, totals, strict=True):
            if wanted > whole:
                assert answer == NeverFits(axis, wanted, whole), answer
                return True
        for axis, wanted, free in zip(AXES, need, self.ledger.free(), strict=True):
            if wanted > free:
                assert answer == Shortfall(axis, wanted, free), f"{answer}, {wanted} of {free}"
                self.done[f"short of {axis}"] += 1
                return True
        assert isinstance(answer, Plan | Permit), f"{answer} although {need} are free"
        return False

    def _moves(self, subject: object) -> bool:
        return self.moving is not None and self.moving.subject == subject

    def _pick(self, among: Any) -> Any:
        choices = list(among)
        return self.random.choice(choices) if choices else None


def _failing(step: str) -> Callable[[str], None]:
    def fault(at: str) -> None:
        if at == step:
            raise DeviceError(f"no {at}")

    return fault
