"""Reads back what every owner's replicas hold, and overwrites whatever nobody holds."""

from __future__ import annotations

from typing import Any

import torch

from tests.model.stores.ledger import Owner
from tests.model.stores.units import WritingUnits, state_after

POISON = -7.0
GARBAGE = 0xC3
STATE_AT = 48
"""Bytes of the convolution history, which the state follows in its image."""


class Contents:
    def __init__(self, program: Any, units: WritingUnits, transfers: Any) -> None:
        self._program = program
        self._units = units
        self._host = transfers._host
        self._spaces = program._stores.context.spaces["main"]

    def checkpoint(self, ref: Any, owner: Owner) -> None:
        kept = self._program._checkpoints.get(ref)
        assert (kept.slot is not None) == (owner.slots > 0), "a slot too many or too few"
        assert (kept.image is not None) == owner.image, "an image too many or too few"
        if kept.slot is not None:
            self._state(self._units.states[kept.slot.index], owner)
        if kept.image is not None:
            self._state(self._image(kept.image, STATE_AT, 1)[0], owner)
        self._pages(kept.history, owner)

    def sequence(self, handle: Any, owner: Owner) -> None:
        record = self._program._contexts.sequences.get(handle)
        assert record.frontier == len(owner.tokens)
        self._state(self._units.states[record.slot.index], owner)
        self._pages(record.history, owner)
        pages = self._units.tables[record.row, : len(owner.pages)].tolist()
        assert pages == [p.device.location.index for p in self._directory(record.history)]

    def snapshot(self, resume: Any, owner: Owner) -> None:
        kept = self._program._contexts.snapshots.get(resume)
        self._state(self._image(kept.image, STATE_AT, 1)[0], owner)
        self._pages(kept.sequence.history, owner)

    def nothing_is_pinned(self) -> None:
        stores = self._program._stores
        assert not any(page.pins for page in self._spaces.pages.live_pages()), "a page is pinned"
        assert not any(image.pins for image in stores.slots._images.values()), "a slot is pinned"
        assert not stores.context.arena._pins, "a host extent is pinned"
        assert not stores.context.ledger.open_reservations, "a reservation was left open"

    def poison(self) -> None:
        """Free slots, pages and extents, slots that hold no state, columns that are not final."""
        stores, units = self._program._stores, self._units
        units.states[list(stores.slots.pool._free)] = POISON
        for record in self._program._contexts.sequences.values():
            units.states[[slot.index for slot in record.ring if slot is not record.slot]] = POISON
        units.keys[list(self._spaces.pool._free)] = POISON
        for page in self._spaces.pages.live_pages():
            if page.device is not None:
                units.keys[page.device.location.index, page.committed :] = POISON
        for offset, size in stores.context.arena._size_at.items():
            self._host[offset : offset + size] = GARBAGE

    def _directory(self, history: Any) -> Any:
        return self._spaces.directory(history.spaces["main"])

    def _state(self, value: torch.Tensor, owner: Owner) -> None:
        assert int(value) == state_after(owner.tokens), "the state of something else"

    def _image(self, extent: Any, start: int, count: int) -> torch.Tensor:
        at = extent.offset + start
        return self._host[at : at + 4 * count].view(torch.float32)

    def _pages(self, history: Any, owner: Owner) -> None:
        pages = self._directory(history)
        assert len(pages) == len(owner.pages), (
            f"{len(pages)} pages, {len(owner.pages)} by the model"
        )
        for index, (page, model) in enumerate(zip(pages, owner.pages, strict=True)):
            places = (page.device is not None, page.host is not None)
            assert places == (model.device, model.host > 0), f"page {index} lies elsewhere"
            count = owner.columns(index)
            tokens = owner.tokens[64 * index : 64 * index + count]
            if page.device is not None:
                have = self._units.keys[page.device.location.index, :count].tolist()
                assert have == tokens, f"page {index} of something else"
            if page.host is not None and page.host.coverage >= count:
                assert self._image(page.host.location, 0, count).tolist() == tokens, "wrong copy"
