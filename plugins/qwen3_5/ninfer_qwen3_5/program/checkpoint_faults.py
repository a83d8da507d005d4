"""Faults of kept contexts: how they are found, and whom they are put down to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ninfer_core.contract.errors import CacheFault, EngineFailure
from ninfer_core.store.errors import require
from ninfer_core.store.logical_pages import columns_on
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
    spaces.check_frozen(history)
    require(spaces.view(history).frontier == frontier, "a checkpoint's pages end at its frontier")
    require(bool(kept.tiers), "a checkpoint lies somewhere")
    if kept.slot is not None:
        stores.slots.require_published(kept.slot)
    if kept.image is not None:
        stores.context.arena.validate(kept.image)
    for index, page in enumerate(spaces.directory(history)):
        columns = columns_on(index, frontier)
        require(kept.slot is None or page.on_device(columns), "a checkpoint's page is here")
        require(kept.image is None or page.on_host(columns), "a checkpoint's page is saved")
