"""Device and host memory as Python lists: what a store's decisions do to real content.

Each token is a value of its own and everything free is poisoned, so a page shared wrongly, a copy
left out or a unit freed early is seen as wrong content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ninfer_core.store import (
    PAGE_TOKENS,
    ClearState,
    ContextStore,
    CopyPage,
    CopyState,
    Extent,
    LogicalPage,
    Slot,
    Unit,
    pages_for,
)

POISON = object()


class ShadowDevice:
    """Memory for every pool of ``store``, changed only as kernels and copies would change it."""

    def __init__(self, store: ContextStore) -> None:
        self.store = store
        self.host: dict[int, list[object]] = {}
        self._pages: dict[str, list[list[object]]] = {
            name: [[POISON] * PAGE_TOKENS for _ in range(spaces.pool.capacity)]
            for name, spaces in store.spaces.items()
        }
        self._states: dict[str, list[object]] = {
            name: [POISON] * slots.rows for name, slots in store.slots.items()
        }
        self._tables: dict[str, dict[tuple[int, int], int]] = {name: {} for name in store.spaces}

    def carry_out(self, *instructions: CopyPage | CopyState | ClearState) -> None:
        for step in instructions:
            if isinstance(step, CopyPage):
                pages = self._pages[step.pool]
                pages[step.target][: step.columns] = pages[step.source][: step.columns]
            elif isinstance(step, CopyState):
                states = self._states[step.pool]
                states[step.target] = states[step.source]
            else:
                self._states[step.pool][step.slot] = ()

    def publish_rows(self) -> None:
        """Send the logged table changes, as a launch does; the device knows no others."""
        for name, spaces in self.store.spaces.items():
            assert spaces.tables is not None
            for delta in spaces.tables.drain():
                self._tables[name][delta.row, delta.column] = delta.page

    def write(self, pool: str, row: int, position: int, value: object) -> None:
        """Write one column through the device's table."""
        page = self._entry(pool, row, position // PAGE_TOKENS)
        self._pages[pool][page][position % PAGE_TOKENS] = value

    def read(self, pool: str, row: int, count: int) -> list[object]:
        """The first ``count`` columns through the device's table."""
        pages = [self._entry(pool, row, index) for index in range(pages_for(count))]
        return [value for page in pages for value in self._pages[pool][page]][:count]

    def _entry(self, pool: str, row: int, index: int) -> int:
        page = self._tables[pool].get((row, index))
        assert page is not None, f"{pool}: entry [{row}, {index}] was never sent to the device"
        return page

    def set_state(self, slot: Slot, value: object) -> None:
        self._states[slot.pool][slot.index] = value

    def state(self, slot: Slot) -> object:
        return self._states[slot.pool][slot.index]

    def to_host(self, pool: str, unit: Unit, extent: Extent, columns: int) -> None:
        self.host[extent.offset] = self._pages[pool][unit.index][:columns]

    def to_device(self, pool: str, extent: Extent, unit: Unit, columns: int) -> None:
        self._pages[pool][unit.index][:columns] = self.host[extent.offset][:columns]

    def assert_content(
        self, pool: str, pages: Sequence[LogicalPage], expected: Sequence[object]
    ) -> None:
        """Every replica that claims to cover its share of ``expected`` holds it; one does."""
        for index in range(pages_for(len(expected))):
            page = pages[index]
            part = list(expected[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS])
            contents: list[list[object]] = []
            if page.device is not None and page.on_device(len(part)):
                contents.append(self._pages[pool][page.device.location.index])
            if page.host is not None and page.on_host(len(part)):
                contents.append(self.host[page.host.location.offset])
            assert contents, f"{pool}: no replica covers page {index}"
            for content in contents:
                assert content[: len(part)] == part, f"{pool}: page {index} has other content"

    def poison_free(self) -> None:
        """Overwrite whatever the ledgers call free."""
        for name, spaces in self.store.spaces.items():
            for index in _free(spaces.pool.capacity, spaces.pool.live_units()):
                self._pages[name][index][:] = [POISON] * PAGE_TOKENS
        for name, slots in self.store.slots.items():
            for index in _free(slots.rows, slots.pool.live_units()):
                self._states[name][index] = POISON
        held = {extent.offset for extent in self.store.arena.live_extents()}
        self.host = {offset: data for offset, data in self.host.items() if offset in held}


def _free(count: int, live: Iterable[Unit]) -> set[int]:
    return set(range(count)) - {unit.index for unit in live}
