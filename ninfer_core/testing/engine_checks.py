"""What a request over the fakes must look like, while it is published and at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import Delta, FinishReason, GenerationEvent, GenerationStart
from ninfer_core.contract.requests import CacheMode
from ninfer_core.engine.core import EngineCore
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.response import Response, Terminal
from ninfer_core.engine.states import RUNNABLE, RequestState
from ninfer_core.testing.fake_law import (
    CLOSE_TOKENS,
    EMPTY_STATE,
    execute,
    next_token,
)
from ninfer_core.testing.fake_program import FakeProgram

MOVING = frozenset({RequestState.MATERIALIZING, RequestState.PAUSING})
"""In a context transaction that takes the request in or out."""


class CheckedResponse(Response):
    """Checks at the moment of publication that what is shown was committed before."""

    def __init__(
        self, on_settled: Callable[[], None] | None, committed: dict[int, list[int]]
    ) -> None:
        super().__init__(on_settled)
        self._committed = committed
        self.record: RequestRecord | None = None
        self.shown: list[int] = []
        self.starts = 0
        self.ends = 0

    def put(self, *events: GenerationEvent) -> None:
        for event in events:
            self._check(event)
        super().put(*events)

    def _check(self, event: GenerationEvent) -> None:
        assert self.record is not None
        assert self.ends == 0, "an event after the end"
        if isinstance(event, GenerationStart):
            self.starts += 1
            assert self.starts == 1, "a second start"
            assert not self.shown, "a start after output"
            some, point = event.reused_tokens, event.reuse_point
            assert some == 0 or some < event.prompt_tokens, "nothing is left to read"
            assert (some > 0) == (point is not None), "reused without a point, or a point unused"
        if isinstance(event, Delta):
            assert self.starts == 1, "a delta before the start"
            self.shown.extend(event.token_ids)
            committed = self._committed.get(self.record.ticket, [])
            assert self.shown == committed[: len(self.shown)], "shown but not committed"

    def end(self, event: Terminal, failure: EngineFailure | None = None) -> None:
        self.ends += 1
        assert self.ends == 1, "a second end"
        super().end(event, failure)


def check_law(record: RequestRecord, burst: int, vocab: int) -> None:
    """Every token is what the fake model says after the ones before it, or a forced one."""
    state = execute(EMPTY_STATE, record.prepared.token_ids.tolist())
    budget, seed = record.options.thinking_budget, record.sampling.seed
    forced: list[int] = []
    closed = False
    assert seed is not None
    for index, token in enumerate(record.tokens):
        if token == CLOSE_TOKENS[0] and not closed:
            assert budget is not None, "closed unasked"
            assert index >= max(budget, 1), "closed too early"
            assert burst > 1 or index == max(budget, 1), "closed too late"
            forced, closed = list(CLOSE_TOKENS), True
        if forced:
            assert token == forced.pop(0), "a forced token is missing"
        else:
            short = index < record.rules.min_tokens and record.rules.suppressed_until_min
            law = next_token(state, seed, vocab, may_stop=not short)
            assert token == law, f"token {index} is {token}, the model says {law}"
        state = execute(state, [token])
    stops = record.session.stop_token_ids
    assert all(token not in stops for token in record.tokens[:-1]), "went on after a stop"
    if record.ending is FinishReason.STOP_TOKEN:
        assert record.tokens[-1] in stops
    grammar = getattr(record.session, "_grammar", None)
    dead_after = None if grammar is None else grammar.dead_after
    most = (
        None if dead_after is None else max(0, dead_after - 1 + burst) + len(CLOSE_TOKENS) * closed
    )
    assert most is None or len(record.tokens) <= most, "went on without its mask"
    may_be_open = budget is None or len(record.tokens) <= max(budget, 1) + burst
    assert closed or may_be_open, "closing was never forced"


def check_cache(core: EngineCore, program: FakeProgram) -> None:
    """The catalogue and the Program know the same checkpoints; a capture gates its request."""
    contexts = program.contexts
    drops = core.stats().cache_drops
    assert program.may_be_forgotten or not drops, "the cache was dropped for a fault of its own"
    known = {entry.ref for entry in core.resources.catalogue}
    held = set(contexts.checkpoints) - set(core.resources.guard.moved)
    assert known == held, "the catalogue is not what the Program holds"
    for entry in core.resources.catalogue:
        facts = contexts.checkpoints[entry.ref].facts
        assert entry.facts == facts, "facts of the catalogue are out of date"
    indexed = len(core.resources.catalogue._index)
    damaged = program.may_be_forgotten
    assert damaged or indexed == len(known), "the index is not what the catalogue holds"
    if core.stopped:
        return
    gated = [r for r in core.scheduler.residents if r.capture is not None]
    current = core.contexts.current
    capturing = current.record if current is not None and contexts.capturing else None
    assert capturing is None or capturing in gated, "a capture left its request free"
    assert capturing is None or not core.scheduler.protected, "a capture beside a resume"
    for record in gated:
        due = record in core.captures.waiting
        assert due or record is capturing, "a request waits for a capture that nobody makes"
        assert not record.flying, "a request at a restore point is in a unit"


def check_reuse(record: RequestRecord, earlier: Iterable[RequestRecord]) -> None:
    """What was reused was read or said before, by a request that may share it."""
    reused, cache = record.watch.cached_tokens, record.prepared.request.cache
    if reused == 0:
        return
    assert cache.mode is CacheMode.READ_WRITE, "a request that takes no part reused something"
    wanted = record.prepared.token_ids[:reused].tolist()
    assert any(
        [*one.prepared.token_ids.tolist(), *one.tokens][:reused] == wanted
        for one in earlier
        if one.ticket < record.ticket
        and one.prepared.request.cache.mode is CacheMode.READ_WRITE
        and one.prepared.request.cache.salt == cache.salt
        and one.prepared.identity.template == record.prepared.identity.template
    ), "reused from nobody"


def check_lanes(core: EngineCore, program: FakeProgram) -> None:
    """Residents, lanes and sequences belong to each other, one to one."""
    if core.stopped:
        return
    residents = core.scheduler.residents
    lanes = [record.lane for record in residents]
    assert len(set(lanes)) == len(lanes) <= program.limits.max_concurrency
    assert None not in lanes
    free = core.scheduler.lanes - len(lanes)
    assert (core.scheduler.free_lane is not None) == (free > 0), "a lane is lost"
    bound = [r for r in residents if r.sequence is not None]
    assert len(bound) == len(program.contexts.sequences), "a sequence has no request"
    in_flight = {r.sequence for r in residents if r.flying}
    assert in_flight == program.flying, "a row in flight has no request"
    finished = [r for r in residents if r.state not in RUNNABLE | MOVING]
    assert all(r.flying for r in finished), "a finished request keeps its lane"
    assert all(r.response.done for r in finished), "an end waits for a round ahead"
