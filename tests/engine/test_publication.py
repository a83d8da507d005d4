"""preview → Program.commit → accounting → OutputSession.commit → publish, and faults in between."""

from __future__ import annotations

import pytest

from ninfer_core.contract.errors import EngineFailure, RequestError, Unavailable
from ninfer_core.contract.events import Delta, Failed, FinishReason
from ninfer_core.contract.units import PendingBatch
from ninfer_core.engine import publication
from ninfer_core.testing.engine_harness import EngineHarness


class Boom(Exception):
    """What an injected fault raises."""


def two_decoding(options, **rest):
    """A harness with two requests that decode together, two tokens each published."""
    harness = EngineHarness()
    tracked = [
        harness.submit([5 + seed], options(9, seed=seed, ignore_eos=True, **rest))
        for seed in range(2)
    ]
    while any(len(one.record.tokens) < 2 for one in tracked):
        harness.step()
    return harness, tracked


def test_the_steps_happen_in_this_order_for_the_whole_batch(options, monkeypatch):
    harness, tracked = two_decoding(options)
    log = []

    def spy(owner, name, label, index=0):
        real = getattr(owner, name)

        def spied(*args, **rest):
            log.append(label(args) if callable(label) else label)
            return real(*args, **rest)

        monkeypatch.setattr(owner, name, spied)

    for one in tracked:
        spy(one.record.session, "preview", f"preview {one.record.ticket}")
        spy(one.record.session, "commit", f"output {one.record.ticket}")
        spy(one.record.response, "put", f"publish {one.record.ticket}")
    spy(harness.program, "commit", "commit")
    accounting = harness.core.publisher._accounting
    spy(accounting, "accept", lambda args: f"account {args[0].ticket}")
    harness.step()
    steps = ("preview", "commit", "account", "output", "publish")
    expected = [
        f"{step} {ticket}" if step != "commit" else "commit"
        for step in steps
        for ticket in ((1, 2) if step != "commit" else (0,))
    ]
    assert log == expected
    harness.run_dry()


def break_step(step, harness, tracked, monkeypatch, row):
    """Arm one fault in the coming round; ``row`` is the row it hits, where rows differ."""
    record = tracked[row].record

    def boom(*args, **rest):
        raise Boom(f"fault in {step}")

    if step in ("collect", "commit", "commit_end"):
        harness.faults.arm(step, Boom(f"fault in {step}"))
    elif step == "account":
        accounting = harness.core.publisher._accounting
        real = accounting.accept
        monkeypatch.setattr(
            accounting,
            "accept",
            lambda r, *rest: boom() if r is record else real(r, *rest),
        )
    elif step == "output":
        monkeypatch.setattr(record.session, "commit", boom)
    else:
        real_put = record.response.put
        monkeypatch.setattr(
            record.response, "put", lambda e: boom() if isinstance(e, Delta) else real_put(e)
        )


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    ("step", "committed"),
    [
        ("collect", False),
        ("commit", False),
        ("commit_end", True),
        ("account", True),
        ("output", True),
        ("publish", True),
    ],
)
def test_a_fault_in_any_step_publishes_nothing_uncommitted(
    options, monkeypatch, step, committed, row
):
    harness, tracked = two_decoding(options)
    shown = [list(one.response.shown) for one in tracked]
    before = {t: list(tokens) for t, tokens in harness.program.journal.committed.items()}
    break_step(step, harness, tracked, monkeypatch, row)
    harness.step()
    assert harness.core.stopped
    journal = harness.program.journal.committed
    assert (journal != before) == committed
    for index, one in enumerate(tracked):
        assert one.response.ends == 1
        earlier_row = step == "publish" and index < row
        new = journal[one.record.ticket] if earlier_row else shown[index]
        assert one.response.shown == new
        end = one.response.terminal
        assert isinstance(end, Failed)
        assert isinstance(end.error, Unavailable)
        assert f"fault in {step}" in str(end.error)
    harness.check_released()


def test_a_batch_that_was_not_committed_is_aborted(options, monkeypatch):
    harness, _ = two_decoding(options)
    aborted = []
    monkeypatch.setattr(
        harness.program,
        "abort",
        lambda pending, real=harness.program.abort: (aborted.append(pending), real(pending)),
    )
    harness.faults.arm("commit", Boom("fault"))
    harness.step()
    assert len(aborted) == 1
    assert isinstance(aborted[0], PendingBatch)
    assert [row.sequence for row in aborted[0].rows]


@pytest.mark.parametrize("error", [Boom("the fault"), RequestError("the fault")])
def test_a_preview_that_raises_ends_its_own_request_alone(options, monkeypatch, error):
    harness, (doomed, other) = two_decoding(options)
    tokens = list(doomed.record.tokens)

    def boom(span):
        raise error

    monkeypatch.setattr(doomed.record.session, "preview", boom)
    harness.step()
    end = doomed.response.terminal
    assert isinstance(end, Failed)
    assert "the fault" in str(end.error)
    assert list(end.partial.token_ids) == tokens == doomed.response.shown
    harness.run_dry()
    assert other.response.terminal.result.finish_reason is FinishReason.OUTPUT_LIMIT


def test_a_summary_that_raises_ends_its_own_request_alone(options, monkeypatch):
    harness, (doomed, other) = two_decoding(options)

    def boom():
        raise Boom("the fault")

    monkeypatch.setattr(doomed.record.session, "summary", boom)
    harness.run_dry()
    end = doomed.response.terminal
    assert isinstance(end, Failed)
    assert "the fault" in str(end.error)
    assert doomed.response.shown == doomed.record.tokens
    assert other.response.terminal.result.finish_reason is FinishReason.OUTPUT_LIMIT


@pytest.mark.parametrize(
    ("field", "value"),
    [("accepted", 0), ("accepted", 2), ("boundaries", (2,)), ("boundaries", (0,))],
)
def test_a_preview_that_breaks_the_contract_ends_the_engine(options, monkeypatch, field, value):
    harness, (first, _) = two_decoding(options)
    preview = first.record.session.preview

    def wrong(span):
        made = preview(span)
        setattr(made, field, value)
        return made

    monkeypatch.setattr(first.record.session, "preview", wrong)
    with pytest.raises(AssertionError, match="a preview"):
        harness.step()
    assert harness.core.stopped
    assert first.response.shown == first.record.tokens


def test_a_unit_with_foreign_rows_ends_the_engine(options, monkeypatch):
    harness, _ = two_decoding(options)
    real = harness.program.launch_decode

    def swapped(rows, **rest):
        return real(list(reversed(rows)), **rest)

    monkeypatch.setattr(harness.program, "launch_decode", swapped)
    with pytest.raises(AssertionError, match="other rows"):
        harness.step()
    assert harness.core.stopped


def test_a_cut_span_says_why_it_was_cut(options, monkeypatch):
    harness, _ = two_decoding(options)
    limits = []
    real = publication._span

    def spied(record, row, kind):
        span = real(record, row, kind)
        limits.append((len(record.tokens), span.limit))
        return span

    monkeypatch.setattr(publication, "_span", spied)
    harness.run_dry()
    assert {limit for count, limit in limits if count < 8} == {None}
    assert {limit for count, limit in limits if count == 8} == {FinishReason.OUTPUT_LIMIT}


@pytest.mark.parametrize("step", ["release", "discard", "begin", "advance", "launch", "reserve"])
def test_a_fault_elsewhere_ends_everything_once(options, step):
    harness = EngineHarness()
    harness.program.config.pages = 8
    tracked = [harness.submit([5 + s], options(20, seed=s, ignore_eos=True)) for s in range(5)]
    harness.step(3)
    harness.faults.arm(step, Boom(f"fault in {step}"), after=1)
    for one in tracked[::2]:
        harness.cancel(one)
    harness.run_dry()
    assert all(one.response.ends == 1 for one in tracked)
    if harness.core.stopped:
        assert harness.core.cleanup.troubles == []
        harness.check_released()


def test_cleanup_goes_on_when_its_own_steps_fail(options, monkeypatch):
    harness, tracked = two_decoding(options)

    def refuse(*args, **rest):
        raise EngineFailure("no")

    monkeypatch.setattr(harness.program, "finish", refuse)
    harness.faults.arm("commit_end", Boom("fault"))
    harness.core.step()
    assert [one.response.ends for one in tracked] == [1, 1]
    assert len(harness.core.cleanup.troubles) == 2
