"""Block tables of one pool: i32[rows, columns] at a fixed address, with a log of changes.

Entry ``[r, i]`` is the physical page of tokens ``64*i .. 64*i+63`` of the space bound to row
``r``. Only the first ``length(r)`` entries of a row mean anything; the others are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from ninfer_core.store.errors import TransitionError, require
from ninfer_core.store.instructions import TableDelta

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class BlockTables:
    """The host side of the table: written in place, and logged for a device copy.

    ``storage`` is any writable buffer of shape [rows, columns] and C int, such as
    ``tensor.numpy()`` of a pinned tensor; strides are honoured, so a transposed view serves the
    [columns, rows] form. Without it the table owns its memory.
    """

    def __init__(self, rows: int, columns: int, storage: WriteableBuffer | None = None) -> None:
        if rows < 1 or columns < 1:
            raise ValueError(f"block tables of {rows} x {columns}; both must be at least 1")
        self.rows = rows
        self.columns = columns
        self._cells = _own_cells(rows, columns) if storage is None else memoryview(storage)
        if self._cells.shape != (rows, columns) or self._cells.format != "i":
            raise ValueError(
                f"block table storage is {self._cells.format}{list(self._cells.shape or ())}; "
                f"give a writable int32 buffer of [{rows}, {columns}]"
            )
        if self._cells.readonly:
            raise ValueError("block table storage is read-only; give a writable buffer")
        self._lengths: list[int | None] = [None] * rows
        self._log: dict[tuple[int, int], int] = {}

    def bind(self, row: int, pages: Sequence[int]) -> None:
        """Give ``row`` to a space with these physical pages; the row must be free."""
        if self._lengths[row] is not None:
            raise TransitionError(f"execution row {row} is already bound")
        if len(pages) > self.columns:
            raise TransitionError(f"{len(pages)} pages do not fit a row of {self.columns}")
        self._lengths[row] = len(pages)
        cells = self._cells
        for index, page in enumerate(pages):
            cells[row, index] = page
        self._log.update(zip(zip(repeat(row), range(len(pages))), pages, strict=True))

    def unbind(self, row: int) -> None:
        """Free ``row``; its unsent changes are dropped."""
        self.cut(row, 0)
        self._lengths[row] = None

    def append(self, row: int, page: int) -> None:
        """Map one more page at the end of ``row``."""
        length = self.length(row)
        if length == self.columns:
            raise TransitionError(f"execution row {row} is full at {length} pages")
        self._lengths[row] = length + 1
        self._cells[row, length] = page
        self._log[row, length] = page

    def cut(self, row: int, length: int) -> None:
        """Forget the entries of ``row`` from ``length`` on."""
        for index in range(length, self.length(row)) if self._log else ():
            self._log.pop((row, index), None)
        self._lengths[row] = min(length, self.length(row))

    def length(self, row: int) -> int:
        """Mapped entries of a bound row."""
        length = self._lengths[row]
        if length is None:
            raise TransitionError(f"execution row {row} is not bound")
        return length

    def row(self, row: int) -> tuple[int, ...]:
        """The physical pages of a bound row."""
        cells = self._cells
        return tuple([cells[row, index] for index in range(self.length(row))])

    def take_row(self, row: int) -> tuple[int, ...]:
        """The whole row for a bulk upload; its logged changes count as sent."""
        pages = self.row(row)
        if self._log:
            self._log = {place: page for place, page in self._log.items() if place[0] != row}
        return pages

    @property
    def pending(self) -> int:
        """Changes that :meth:`drain` would give."""
        return len(self._log)

    def pending_rows(self) -> set[int]:
        """The rows that they change."""
        return {row for row, _ in self._log}

    def drain(self) -> tuple[TableDelta, ...]:
        """Changes since the last call, each entry once, in order: what a launch must send."""
        deltas = tuple(TableDelta(row, index, page) for (row, index), page in self._log.items())
        self._log.clear()
        return deltas

    def check(self) -> None:
        for (row, index), page in self._log.items():
            length = self._lengths[row]
            require(
                length is not None and index < length and self._cells[row, index] == page,
                f"the logged change [{row}, {index}] is what the table says",
            )


def _own_cells(rows: int, columns: int) -> memoryview:
    cells = memoryview(bytearray(rows * columns * 4)).cast("i", (rows, columns))
    for row in range(rows):
        for column in range(columns):
            cells[row, column] = -1
    return cells
