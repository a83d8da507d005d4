"""Order and membership: exact batches, one chunk per cycle, rotation, tickets, bounded bypass."""

from __future__ import annotations

import pytest

from ninfer_core.contract.errors import Infeasible, QueueTimeout
from ninfer_core.contract.events import Failed, FinishReason
from ninfer_core.engine.queue import TicketQueue, by_ticket
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.states import RequestState
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_transactions import FakeConfig

LONG = list(range(3, 35))


class Ticket:
    """As much of a request as queue and scheduler look at."""

    def __init__(self, ticket, state=RequestState.DECODE_READY):
        self.ticket = ticket
        self.state = state
        self.bypassed = self.pause_aborts = 0
        self.blocked = self.permitted = False
        self.lane = self.capture = None


def spy_launches(harness):
    """Every launch as (kind, tickets), in order, with None between cycles."""
    program, log = harness.program, []

    def wrap(name):
        launch = getattr(program, f"launch_{name}")

        def spied(rows, **rest):
            each = rows if isinstance(rows, list) else [rows]
            held = [program.contexts.sequence(row.sequence) for row in each]
            log.append((name, [one.request.publication_order for one in held]))
            return launch(rows, **rest)

        setattr(program, f"launch_{name}", spied)

    for name in ("control", "decode", "prefill", "replay"):
        wrap(name)
    return log


def test_all_ready_rows_decode_together_as_an_exact_batch(options):
    harness = EngineHarness()
    for seed in range(3):
        harness.submit([5 + seed], options(4 + seed, ignore_eos=True))
    log = spy_launches(harness)
    harness.run_dry()
    decodes = [rows for name, rows in log if name == "decode"]
    assert decodes == [[1], [1, 2], [1, 2, 3], [2, 3], [2, 3], [3], [3]]
    assert harness.core.stats().rows_by_batch == {1: 3, 2: 3, 3: 1}


def test_prefill_rotates_between_residents_one_chunk_per_cycle(options):
    harness = EngineHarness()
    for _ in range(3):
        harness.submit(LONG, options(1, ignore_eos=True))
    log = spy_launches(harness)
    harness.step(4)
    chunks = [rows[0] for name, rows in log if name == "prefill"]
    assert len(chunks) == 3, "the first cycle admits, each later one runs one chunk"
    harness.run_dry()
    chunks = [rows[0] for name, rows in log if name == "prefill"]
    assert chunks == [1, 2, 3] * 5


def test_control_decode_and_chunk_launch_in_that_order_with_disjoint_rows(options):
    harness = EngineHarness()
    harness.submit([5], options(None, ignore_eos=True, thinking_budget=6))
    harness.submit([6], options(None, ignore_eos=True))
    log = spy_launches(harness)
    cycles = []
    for step in range(20):
        if step == 4:
            harness.submit(LONG, options(1, ignore_eos=True))
        before = len(log)
        harness.step()
        cycles.append(log[before:])
    rank = {"control": 0, "decode": 1, "prefill": 2, "replay": 2}
    for launches in cycles:
        kinds = [rank[name] for name, _ in launches]
        rows = [ticket for _, tickets in launches for ticket in tickets]
        assert kinds == sorted(set(kinds))
        assert len(rows) == len(set(rows))
    assert [name for name, _ in max(cycles, key=len)] == ["control", "decode", "prefill"]
    harness.run_dry()


def test_a_row_whose_control_committed_decodes_in_the_next_cycle(options):
    harness = EngineHarness()
    harness.submit([5], options(8, ignore_eos=True, thinking_budget=2))
    log = spy_launches(harness)
    harness.run_dry()
    assert [name for name, _ in log] == ["prefill", "decode", "control"] + ["decode"] * 4


def test_a_blocked_row_does_not_stop_the_next(options):
    harness = EngineHarness(FakeConfig(page_tokens=4, pages=10, pause_kinds=frozenset()))
    harness.submit([5] * 4, options(9, ignore_eos=True))
    harness.submit([6] * 4, options(9, ignore_eos=True))
    harness.step(5)
    first, second = (t.record for t in harness.requests)
    program = harness.program
    held = [program.accounts.held(r.sequence).pages for r in (first, second)]
    log = spy_launches(harness)
    harness.program.accounts.take("ballast", harness.program.accounts.free)
    while not first.blocked and not second.blocked:
        harness.step()
    blocked, other = (first, second) if first.blocked else (second, first)
    assert log[-1] == ("decode", [other.ticket])
    assert held == [2, 2]
    harness.program.accounts.give_all("ballast")
    harness.core.events.changed()
    harness.run_dry()
    assert len(blocked.tokens) == 9


def test_tickets_are_admitted_in_order(options):
    harness = EngineHarness(max_pending=5)
    admitted = []
    harness.core.transitions.observers.append(
        lambda record, _, new: (
            admitted.append(record.ticket) if new is RequestState.MATERIALIZING else None
        )
    )
    for _ in range(8):
        harness.submit([5], options(3, ignore_eos=True))
    harness.run_dry()
    assert admitted == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_blocked_head_is_overtaken_by_at_most_c_requests(options):
    config = FakeConfig(pages=11, bind_whole_prompt=True, pause_kinds=frozenset())
    harness = EngineHarness(config, max_pending=20)
    holder = harness.submit([5] * 8, options(14, ignore_eos=True))
    harness.step(3)
    head = harness.submit(LONG[:28] + LONG[:12], options(1))
    followers = [harness.submit([6], options(3, ignore_eos=True)) for _ in range(8)]
    while holder.response.ends == 0:
        harness.step()
    overtook = [t for t in followers if t.record.started]
    assert head.record.bypassed == len(overtook) == 3
    harness.run_dry()
    assert head.response.terminal.result.finish_reason is FinishReason.OUTPUT_LIMIT


def test_the_scan_reaches_the_head_and_c_followers():
    queue = TicketQueue(reach=2)
    records = [Ticket(number) for number in (4, 1, 3, 2)]
    for record in records:
        queue.push(record)
    assert [r.ticket for r in queue.candidates()] == [1, 2, 3]
    queue.remove(records[2])
    queue.overtake(records[2])
    assert [r.bypassed for r in sorted(records, key=by_ticket)] == [1, 1, 0, 0]
    queue.remove(records[0])
    queue.overtake(records[0])
    assert [r.ticket for r in queue.candidates()] == [1], "nobody may pass a head at its bound"


def test_scans_start_on_events_only_never_on_decode_progress(options):
    harness = EngineHarness(FakeConfig(slots=2), max_pending=3)
    for _ in range(3):
        harness.submit([5], options(20, ignore_eos=True))
    harness.step(6)
    scans = harness.faults.reached["plan_bind"]
    harness.step(10)
    assert harness.faults.reached["plan_bind"] == scans
    harness.run_dry()


def test_permit_order_is_resume_first_then_tickets():
    scheduler = Scheduler(3)
    records = [Ticket(number) for number in (2, 3, 1)]
    for record in records:
        scheduler.enter(record)
    assert [r.ticket for r in scheduler.permit_order()] == [1, 2, 3]
    scheduler.protect(records[1])
    assert [r.ticket for r in scheduler.permit_order()] == [3, 1, 2]
    assert [r.ticket for r in scheduler.victims(records[2])] == [2]
    scheduler.leave(records[1])
    assert scheduler.protected is None
    assert scheduler.free_lane == 1


def test_the_queue_deadline_starts_before_preparation(options):
    harness = EngineHarness(max_pending=3)
    for _ in range(3):
        harness.submit([5], options(40, ignore_eos=True))
    harness.step(3)
    prepare = harness.frontend.prepare

    def slow(prompt):
        harness.clock.advance(4.0)
        return prepare(prompt)

    harness.frontend.prepare = slow
    waiting = harness.submit([5], options(3, queue_timeout=6.0))
    harness.clock.advance(1.9)
    harness.step()
    assert waiting.response.ends == 0
    harness.clock.advance(0.2)
    harness.step()
    terminal = waiting.response.terminal
    assert isinstance(terminal, Failed)
    assert isinstance(terminal.error, QueueTimeout)
    assert terminal.partial is None
    with pytest.raises(QueueTimeout):
        harness.submit([5], options(3, queue_timeout=3.0))
    assert harness.gate.count == 4
    harness.run_dry()


def test_an_admitted_request_has_no_queue_deadline_any_more(options):
    harness = EngineHarness(queue_timeout=2.0)
    tracked = harness.submit([5], options(9, ignore_eos=True))
    harness.step(2)
    harness.clock.advance(5.0)
    harness.run_dry()
    assert tracked.response.terminal.result.finish_reason is FinishReason.OUTPUT_LIMIT


def test_outstanding_is_bounded_and_a_place_returns_when_both_sides_let_go(options):
    harness = EngineHarness(max_pending=1)
    tracked = [harness.submit([5], options(2, ignore_eos=True)) for _ in range(4)]
    assert harness.submit([5], options(2)) is None
    harness.run_dry()
    assert harness.submit([5], options(2)) is None, "done, but nobody has read the ends"
    harness.consume(tracked[0])
    assert harness.submit([5], options(2)) is not None
    harness.run_dry()


def test_with_no_pause_the_youngest_makes_room_when_everybody_is_stuck(options):
    harness = EngineHarness(FakeConfig(pages=8, pause_kinds=frozenset()))
    old = harness.submit([5] * 4, options(24, ignore_eos=True))
    young = harness.submit([6] * 4, options(24, ignore_eos=True))
    harness.run_dry()
    assert old.response.terminal.result.finish_reason is FinishReason.OUTPUT_LIMIT
    assert isinstance(young.response.terminal.error, Infeasible)
    assert len(young.response.terminal.partial.token_ids) > 0
