"""Faults of kept contexts: how they are found, and whom they are put down to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ninfer_core.contract.errors import CacheFault, EngineFailure
from ninfer_core.store.errors import require
from ninfer_core.store.logical_pages import columns_on, pages_for
from ninfer_qwen3_5.program.checkpoint_records import Checkpoint
from ninfer_qwen3_5.program.stores import MAIN, Stores


@contextmanager
def blamed_on_cache(what: str) -> Iterator[None]:
    """Whatever breaks in here is a fault of kept contexts: no sequence is touched in here."""
    try:
        yield
    except CacheFault:
        raise
    except (EngineFailure, LookupError, ValueError, AssertionError) as error:
        raise CacheFault(f"{what}: {error}") from error


def require_sound(kept: Checkpoint, stores: Stores) -> None:
    """Raise StoreInvariantError or StaleHandleError unless the records of a checkpoint agree: its
    pages are alive, committed and held for it as far as its frontier, they lie where its tiers say,
    and so does its state image."""
    frontier, history = kept.frontier, kept.history.spaces[MAIN]
    spaces = stores.context.spaces[MAIN]
    view, pages = spaces.view(history), spaces.directory(history)
    require(not view.active, "a checkpoint's history is frozen")
    require(view.frontier == frontier, "a checkpoint's pages end at its frontier")
    require(len(pages) == pages_for(frontier), "a checkpoint has the pages that it needs")
    require(bool(kept.tiers), "a checkpoint lies somewhere")
    if kept.slot is not None:
        stores.slots.require_published(kept.slot)
    if kept.image is not None:
        stores.context.arena.validate(kept.image)
    device, host = kept.slot is not None, kept.image is not None
    for index, page in enumerate(pages):
        columns = columns_on(index, frontier)
        if not (page.alive and columns <= page.committed and columns in page.holds):
            require(False, f"page {index} of a checkpoint is alive and held for it")
        if (device and not page.on_device(columns)) or (host and not page.on_host(columns)):
            require(False, f"page {index} of a checkpoint lies where the checkpoint does")
