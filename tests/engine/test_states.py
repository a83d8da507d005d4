"""The state table: what the contract lists, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.engine.states import LEGAL_EDGES, RequestState, Transitions

CONTRACT = """
waiting -> materializing
materializing -> prefill replay decode_ready control_ready
prefill -> decode_ready pausing model_finished
decode_ready -> control_ready pausing model_finished
control_ready -> decode_ready pausing model_finished
replay -> prefill decode_ready control_ready pausing
pausing -> paused
paused -> materializing
model_finished -> ended
"""
STOPS = {("waiting", "ended"), ("paused", "ended"), ("replay", "model_finished")}
UNDONE = {("materializing", "waiting"), ("materializing", "paused")} | {
    ("pausing", state) for state in ("prefill", "replay", "decode_ready", "control_ready")
}


@dataclass
class Subject:
    state: RequestState


def contract_edges() -> set[tuple[str, str]]:
    edges = set()
    for line in CONTRACT.strip().splitlines():
        old, _, targets = line.partition(" -> ")
        edges |= {(old, new) for new in targets.split()}
    return edges


def test_the_table_is_the_contract_plus_stops_and_undone_transactions():
    ours = {(old.value, new.value) for old, new in LEGAL_EDGES}
    assert ours == contract_edges() | STOPS | UNDONE


@pytest.mark.parametrize(("old", "new"), sorted(product(RequestState, repeat=2), key=str))
def test_only_legal_edges_are_taken_and_each_is_seen(old, new):
    transitions, seen = Transitions(), []
    transitions.observers.append(lambda subject, a, b: seen.append((a, b)))
    subject = Subject(old)
    if (old, new) in LEGAL_EDGES:
        transitions.move(subject, new)
        assert (subject.state, seen, transitions.count) == (new, [(old, new)], 1)
    else:
        with pytest.raises(EngineFailure, match=f"{old.value} to {new.value}"):
            transitions.move(subject, new)
        assert (subject.state, seen, transitions.count) == (old, [], 0)
