"""What `bench/accept/speculation.py` counts as covered, equal, and a tie."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = str(Path(__file__).parents[2] / "bench" / "accept")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import speculation

    yield speculation
    for name in ("speculation", "accuracy", "_setting"):
        sys.modules.pop(name, None)


def options(**changed):
    named = {"rows": range(1, 9), "drafts": range(1, 8), "share": "full", "seed": 0}
    return argparse.Namespace(**(named | {"device": "cpu"} | changed))


def entry(token, logprob, **top):
    listed = [SimpleNamespace(token_id=int(key[1:]), logprob=value) for key, value in top.items()]
    return SimpleNamespace(token_id=token, logprob=logprob, top=listed)


def answer(*entries):
    return SimpleNamespace(token_ids=tuple(e.token_id for e in entries), logprobs=entries)


@pytest.mark.parametrize(("share", "least", "in_all"), [("full", 8, 500), ("ci", 1, 56)])
def test_every_pair_is_met_often_enough_by_prompts_of_its_own(script, share, least, in_all) -> None:
    counts, seen = Counter(), []
    for batch in script.batches(options(share=share)):
        assert len(batch.prompts) == batch.rows
        counts[batch.rows, batch.drafts] += len(batch.prompts)
        seen += [str(prompt) for prompt in batch.prompts]
    assert len(counts) == 56
    assert min(counts.values()) >= least
    assert sum(counts.values()) >= in_all
    assert len(set(seen)) > 0.8 * len(seen)


def test_a_difference_has_its_place_and_the_gap_of_the_plain_run(script) -> None:
    plain = answer(entry(5, -0.1), entry(6, -0.7, t6=-0.7, t9=-0.72), entry(7, -0.2))
    other = answer(entry(5, -0.13), entry(9, -0.69), entry(1, -4.0))
    assert script.difference(plain, plain) is None
    found = script.difference(other, plain)
    assert found["place"] == 1
    assert found["gap"] == pytest.approx(0.02)
    assert script.difference(answer(entry(5, -0.1), entry(8, -0.6)), plain)["gap"] is None
    assert script.difference(answer(entry(5, -0.1)), plain) == {"place": 1, "gap": None}
    assert list(script.distances(other, plain)) == pytest.approx([0.03])


def test_only_ties_within_the_noise_hold_and_none_on_the_cpu(script) -> None:
    pairs = {f"{rows}x{drafts}": 8 for rows in range(1, 9) for drafts in range(1, 8)}
    rounds = {k: {rows: {1: 4, k: 2} for rows in range(1, 9)} for k in range(1, 8)}
    report = {"pairs": pairs, "drafted": [1] * 7, "differences": [], "noise": 0.01}
    report["verified_by_rows"] = rounds
    assert script.holds(options(), report)
    assert not script.holds(options(), report | {"drafted": [1] * 6 + [0]})
    assert not script.holds(options(), report | {"pairs": pairs | {"1x1": 7}})
    for lacking in (
        {3: {rows: {3: 1} for rows in range(1, 8)}},
        {3: {rows: {3: 1} for rows in range(2, 9)}},
        {3: rounds[3] | {8: {1: 9, 2: 9}}},
    ):
        assert not script.holds(options(), report | {"verified_by_rows": rounds | lacking})
    tie, wide = {"place": 3, "gap": 0.015}, {"place": 3, "gap": 0.03}
    assert not script.holds(options(), report | {"differences": [tie]})
    on_gpu = options(device="cuda:0")
    assert script.holds(on_gpu, report | {"differences": [tie]})
    for bad in (wide, {"place": 3, "gap": None}):
        assert not script.holds(on_gpu, report | {"differences": [bad]})
    assert not script.holds(
        on_gpu, report | {"differences": [{"place": 0, "gap": 0.06}], "noise": 9.0}
    )
