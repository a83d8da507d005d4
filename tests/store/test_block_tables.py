"""Block tables: fixed storage, and a change log from which a second copy can be kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ninfer_core.store import BlockTables, TableDelta, TransitionError


def test_binding_a_row_logs_its_pages_and_later_ones_alone():
    tables = BlockTables(2, 4)
    tables.bind(1, [7, 3])
    assert tables.drain() == (TableDelta(1, 0, 7), TableDelta(1, 1, 3))
    tables.append(1, 5)
    assert tables.drain() == (TableDelta(1, 2, 5),)
    assert tables.drain() == ()
    assert tables.row(1) == (7, 3, 5)


def test_an_entry_that_changed_twice_is_sent_once():
    tables = BlockTables(1, 4)
    tables.bind(0, [7, 3])
    tables.cut(0, 1)
    tables.append(0, 9)
    assert tables.drain() == (TableDelta(0, 0, 7), TableDelta(0, 1, 9))


def test_a_row_taken_whole_is_not_sent_again():
    tables = BlockTables(2, 4)
    tables.bind(0, [7, 3])
    tables.bind(1, [1])
    assert tables.take_row(0) == (7, 3)
    assert tables.pending == 1
    assert tables.drain() == (TableDelta(1, 0, 1),)


def test_the_storage_is_written_in_place_in_either_order():
    rows_first = np.full((2, 3), -7, np.int32)
    columns_first = np.full((3, 2), -7, np.int32)
    for storage in (rows_first, columns_first.T):
        tables = BlockTables(2, 3, storage)
        tables.bind(1, [4, 2])
    assert rows_first.tolist() == [[-7, -7, -7], [4, 2, -7]]
    assert columns_first.T.tolist() == rows_first.tolist()


def read_only() -> np.ndarray:
    cells = np.zeros((2, 3), np.int32)
    cells.setflags(write=False)
    return cells


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (np.zeros((3, 2), np.int32), r"i\[3, 2\]; give a writable int32 buffer of \[2, 3\]"),
        (np.zeros((2, 3), np.int64), r"int32 buffer of \[2, 3\]"),
        (read_only(), "read-only"),
    ],
)
def test_unfit_storage_is_refused(storage, message):
    with pytest.raises(ValueError, match=message):
        BlockTables(2, 3, storage)


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (2, 0)])
def test_an_empty_table_is_refused(rows, columns):
    with pytest.raises(ValueError, match="at least 1"):
        BlockTables(rows, columns)


def test_rows_that_do_not_allow_it_refuse():
    tables = BlockTables(2, 2)
    tables.bind(0, [1, 2])
    for use in (
        lambda: tables.bind(0, []),
        lambda: tables.append(0, 3),
        lambda: tables.bind(1, [1, 2, 3]),
        lambda: tables.append(1, 3),
        lambda: tables.unbind(1),
        lambda: tables.row(1),
    ):
        with pytest.raises(TransitionError):
            use()
    assert tables.row(0) == (1, 2)


def test_a_copy_kept_from_the_log_equals_the_rows(explore):
    rows, columns = 3, 5

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.tables = BlockTables(rows, columns)
            self.expected: list[list[int] | None] = [None] * rows
            self.copy: dict[tuple[int, int], int] = {}

        @rule(row=st.integers(0, rows - 1), pages=st.lists(st.integers(0, 99), max_size=columns))
        def bind_or_unbind(self, row: int, pages: list[int]) -> None:
            if self.expected[row] is None:
                self.tables.bind(row, pages)
                self.expected[row] = list(pages)
            else:
                self.tables.unbind(row)
                self.expected[row] = None

        @rule(row=st.integers(0, rows - 1), page=st.integers(0, 99))
        def append(self, row: int, page: int) -> None:
            expected = self.expected[row]
            if expected is not None and len(expected) < columns:
                self.tables.append(row, page)
                expected.append(page)

        @rule(row=st.integers(0, rows - 1), length=st.integers(0, columns))
        def cut(self, row: int, length: int) -> None:
            expected = self.expected[row]
            if expected is not None:
                self.tables.cut(row, length)
                del expected[length:]

        @rule()
        def launch(self) -> None:
            deltas = self.tables.drain()
            assert len({delta[:2] for delta in deltas}) == len(deltas)
            self.copy.update({(delta.row, delta.column): delta.page for delta in deltas})
            for row, expected in enumerate(self.expected):
                if expected is not None:
                    assert [self.copy[row, i] for i in range(len(expected))] == expected

        @invariant()
        def rows_are_right(self) -> None:
            self.tables.check()
            for row, expected in enumerate(self.expected):
                if expected is not None:
                    assert self.tables.row(row) == tuple(expected)

    explore(Machine)
