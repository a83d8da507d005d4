"""Handles: foreign, outdated and forged ones are failures, never misses."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.store import Handle, HandleTable


def test_a_handle_of_the_contract_serves():
    table: HandleTable[str, SequenceHandle] = HandleTable("sequence", SequenceHandle)
    handle = table.insert("a")
    assert isinstance(handle, SequenceHandle)
    assert table.get(handle) == "a"


def test_a_handle_of_an_equal_table_is_foreign():
    first, second = HandleTable("space", Handle), HandleTable("space", Handle)
    handle = first.insert("a")
    second.insert("b")
    with pytest.raises(EngineFailure, match="stale space handle"):
        second.get(handle)


@pytest.mark.parametrize(("index", "generation"), [(1, 1), (-1, 1), (0, 2), (0, 0)])
def test_forged_handles_are_stale(index, generation):
    table = HandleTable("space", Handle)
    owner = table.insert("a").owner
    with pytest.raises(EngineFailure):
        table.get(Handle(owner, index, generation))


def test_random_histories_tell_live_from_stale(explore):
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.table: HandleTable[int, Handle] = HandleTable("thing", Handle)
            self.live: dict[Handle, int] = {}
            self.stale: set[Handle] = set()

        @rule(value=st.integers())
        def insert(self, value: int) -> None:
            handle = self.table.insert(value)
            assert handle not in self.live
            assert handle not in self.stale
            self.live[handle] = value

        @precondition(lambda self: self.live)
        @rule(pick=st.integers(0, 99))
        def remove(self, pick: int) -> None:
            handle = list(self.live)[pick % len(self.live)]
            assert self.table.remove(handle) == self.live.pop(handle)
            self.stale.add(handle)

        @invariant()
        def books(self) -> None:
            self.table.check()
            assert len(self.table) == len(self.live)
            assert sorted(self.table.values()) == sorted(self.live.values())
            for handle, value in self.live.items():
                assert self.table.get(handle) == value
            for handle in self.stale:
                with pytest.raises(EngineFailure):
                    self.table.get(handle)

    explore(Machine)
