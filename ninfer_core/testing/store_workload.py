"""Sequences, restore points and records over a store, beside what each must be able to read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from ninfer_core.store import (
    ContextStore,
    Demand,
    Frontiers,
    History,
    HistoryPoint,
    Reservation,
    Shortfalls,
    Slot,
    combine,
)
from ninfer_core.testing.shadow_device import ShadowDevice

STATE = "state_slots"


def frontiers(tokens: int) -> Frontiers:
    """A drafter's cache that lags the target's by one token, as with shifted inputs."""
    return {"main": tokens, "draft": max(0, tokens - 1)}


@dataclass
class Saved:
    """A restore point: the tokens that must be readable, and the state after them."""

    point: HistoryPoint
    slot: Slot
    tokens: list[int]


@dataclass
class Holder:
    """A running sequence (it has a row and a slot) or the frozen record of one."""

    name: int
    history: History
    tokens: list[int]
    saved: list[Saved] = field(default_factory=list)
    slot: Slot | None = None
    row: int | None = None

    def point(self, index: int) -> Saved:
        return self.saved[index % len(self.saved)]


class StoreWorkload:
    """What a Program does with a store of pools ``main``, ``draft`` and ``state_slots``.

    Each step returns False, leaving everything as it was, when its resources are not there.
    """

    def __init__(self, store: ContextStore) -> None:
        self.store = store
        self.device = ShadowDevice(store)
        self.states = store.slots[STATE]
        self.running: list[Holder] = []
        self.records: list[Holder] = []
        self._names = itertools.count(1)
        self._tokens = itertools.count(1000)

    def reserve(self, *demands: Demand) -> Reservation | None:
        """Reserve, and prove that a refusal names the short axes and changes nothing."""
        demand, before = combine(demands), self.store.occupancy()
        answer = self.store.ledger.reserve(demand)
        if not isinstance(answer, Shortfalls):
            return answer
        short = {n: c for n, c in demand.units.items() if c > before[n].available}
        named = {a.pool: a.needed for a in answer.axes if a.pool != self.store.arena.name}
        assert named == short
        assert before == self.store.occupancy()
        return None

    def start(self) -> bool:
        row = self._free_row()
        grant = self.reserve(Demand({STATE: 1})) if row is not None else None
        if row is None or grant is None:
            return False
        name = next(self._names)
        slot, clear = self.states.create(name, grant)
        self.device.carry_out(clear)
        self._run(Holder(name, self.store.histories.create(name), []), row, slot)
        grant.settle()
        return True

    def unit(self, holder: Holder, produced: int, accepted: int, ahead: int) -> bool:
        """One round: a permit that also covers ``ahead`` tokens; a few of them are launched."""
        histories, start = self.store.histories, len(holder.tokens)
        peak = start + produced + ahead
        if peak > self.store.layout.table_columns * 64:
            return False
        grant = self.reserve(histories.growth(holder.history, frontiers(peak)))
        if grant is None:
            return False
        histories.ensure_mapped(holder.history, frontiers(start + produced), grant)
        self.device.publish_rows()
        fresh = [next(self._tokens) for _ in range(produced)]
        self._write(holder, fresh)
        histories.ensure_mapped(holder.history, frontiers(start + produced + ahead // 2), grant)
        holder.tokens += fresh[:accepted]
        end = len(holder.tokens)
        histories.commit(holder.history, frontiers(end))
        self._advance_state(holder)
        histories.settle(holder.history, grant, frontiers(end + ahead))
        return True

    def snapshot(self, holder: Holder) -> bool:
        """A restore point at the frontier: KV is only protected, the state is copied."""
        grant = self.reserve(Demand({STATE: 1}))
        if grant is None:
            return False
        assert holder.slot is not None
        slot, copy = self.states.fork(holder.slot, "point", grant)
        self.device.carry_out(copy)
        self.states.freeze(slot, "point")
        self._save(holder, slot)
        grant.settle()
        return True

    def finish(self, holder: Holder, keep: bool) -> bool:
        """End a sequence; with ``keep`` its own state becomes the last restore point."""
        self.running.remove(holder)
        assert holder.slot is not None
        slot, holder.slot, holder.row = holder.slot, None, None
        self.store.histories.freeze(holder.history)
        if keep:
            self.states.freeze(slot, holder.name)
            self._save(holder, slot)
        else:
            self.states.release(slot)
        self.records.append(holder)
        self._shrink(holder)
        return True

    def drop_point(self, holder: Holder, index: int) -> bool:
        self._drop(holder, holder.point(index))
        self._shrink(holder)
        return True

    def resume(self, holder: Holder, index: int, keep: bool) -> bool:
        """Run a record on from one of its points, which is consumed unless ``keep``."""
        saved, row, histories = holder.point(index), self._free_row(), self.store.histories
        at = frontiers(len(saved.tokens))
        if row is None or not self.on_device(holder.history, at):
            return False
        for later in [s for s in holder.saved if len(s.tokens) > len(saved.tokens)]:
            self._drop(holder, later)
        move = not keep and self.states.may_move(saved.slot)
        state = Demand({} if move else {STATE: 1})
        grant = self.reserve(histories.activation_demand(holder.history, at), state)
        if grant is None:
            self._shrink(holder)
            return True
        slot = self._own_state(saved.slot, holder.name, grant, move)
        if not keep:
            histories.unprotect(saved.point)
            holder.saved.remove(saved)
            if not move:
                self.states.release(saved.slot)
        self.device.carry_out(*histories.activate(holder.history, at, grant))
        assert grant.settle().empty
        holder.tokens = list(saved.tokens)
        self.records.remove(holder)
        self._run(holder, row, slot)
        return True

    def fork(self, holder: Holder, index: int) -> bool:
        """Run a new sequence from a record's point; the record stays as it is."""
        saved, row, histories = holder.point(index), self._free_row(), self.store.histories
        at = frontiers(len(saved.tokens))
        if row is None or not self.on_device(holder.history, at):
            return False
        grant = self.reserve(histories.fork_demand(at), Demand({STATE: 1}))
        if grant is None:
            return False
        name = next(self._names)
        history, copies = histories.fork(holder.history, at, name, grant)
        slot = self._own_state(saved.slot, name, grant, move=False)
        self.device.carry_out(*copies)
        assert grant.settle().empty
        self._run(Holder(name, history, list(saved.tokens)), row, slot)
        return True

    def share(self, holder: Holder, index: int) -> bool:
        """A public record of its own over the same pages and the same published state."""
        saved, name = holder.point(index), next(self._names)
        history = self.store.histories.share(holder.history, frontiers(len(saved.tokens)), name)
        self.states.hold(saved.slot)
        public = Holder(name, history, list(saved.tokens))
        self._save(public, saved.slot)
        self.records.append(public)
        return True

    def on_device(self, history: History, at: Frontiers) -> bool:
        return all(
            page.on_device(min(64, count - 64 * index))
            for name, count in at.items()
            for index, page in enumerate(self.store.spaces[name].directory(history.spaces[name]))
            if index * 64 < count
        )

    def verify(self) -> None:
        """The store agrees with itself, and everybody reads what they wrote."""
        self.store.check()
        self.device.poison_free()
        self.device.publish_rows()
        for holder in self.running:
            assert holder.slot is not None
            assert holder.row is not None
            assert self.device.state(holder.slot) == tuple(holder.tokens)
            for pool, expected in contents(holder.tokens):
                assert self.device.read(pool, holder.row, len(expected)) == expected
        for holder in [*self.running, *self.records]:
            for tokens in (holder.tokens, *(saved.tokens for saved in holder.saved)):
                self._verify_pages(holder.history, tokens)
            for saved in holder.saved:
                assert self.device.state(saved.slot) == tuple(saved.tokens)

    def close(self) -> None:
        """Let everything go: the store must then be as new."""
        for holder in list(self.running):
            self.finish(holder, keep=False)
        for holder in list(self.records):
            while holder.saved:
                self.drop_point(holder, 0)
        self.verify()
        assert self.store.idle

    def _verify_pages(self, history: History, tokens: list[int]) -> None:
        for pool, expected in contents(tokens):
            pages = self.store.spaces[pool].directory(history.spaces[pool])
            self.device.assert_content(pool, pages, expected)

    def _free_row(self) -> int | None:
        used = {holder.row for holder in self.running}
        rows = range(self.store.layout.table_rows)
        return next((row for row in rows if row not in used), None)

    def _run(self, holder: Holder, row: int, slot: Slot) -> None:
        holder.row, holder.slot = row, slot
        self.store.histories.bind_row(holder.history, row)
        self.running.append(holder)

    def _write(self, holder: Holder, fresh: list[int]) -> None:
        assert holder.row is not None
        for pool, expected in contents([*holder.tokens, *fresh]):
            for position in range(frontiers(len(holder.tokens))[pool], len(expected)):
                self.device.write(pool, holder.row, position, expected[position])

    def _advance_state(self, holder: Holder) -> None:
        assert holder.slot is not None
        self.states.require_writer(holder.slot, holder.name)
        self.device.set_state(holder.slot, tuple(holder.tokens))

    def _own_state(self, source: Slot, name: int, grant: Reservation, move: bool) -> Slot:
        if move:
            return self.states.move(source, name)
        slot, copy = self.states.fork(source, name, grant)
        self.device.carry_out(copy)
        return slot

    def _save(self, holder: Holder, slot: Slot) -> None:
        point = self.store.histories.protect(holder.history, frontiers(len(holder.tokens)))
        holder.saved.append(Saved(point, slot, list(holder.tokens)))

    def _drop(self, holder: Holder, saved: Saved) -> None:
        self.store.histories.unprotect(saved.point)
        self.states.release(saved.slot)
        holder.saved.remove(saved)

    def _shrink(self, record: Holder) -> None:
        if not record.saved:
            self.store.histories.release(record.history)
            self.records.remove(record)
            return
        keep = max(len(saved.tokens) for saved in record.saved)
        self.store.histories.truncate(record.history, frontiers(keep))
        record.tokens = record.tokens[:keep]


def contents(tokens: list[int]) -> Iterator[tuple[str, list[object]]]:
    """What each pool holds of ``tokens``; equal tokens differ between pools."""
    for pool, count in frontiers(len(tokens)).items():
        yield pool, [(pool, token) for token in tokens[:count]]
