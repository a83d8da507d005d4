"""Bugs put into the context stores of the Program on purpose: the walk must notice each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ninfer_core.errors import NinferError
from ninfer_core.store.demand import Demand
from ninfer_core.store.replicas import Replicas as PageReplicas
from ninfer_core.store.state_slots import StateSlots
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.checkpoint_replicas import Replicas
from ninfer_qwen3_5.program.checkpoints import Checkpoints
from ninfer_qwen3_5.program.host_holders import HostHolders
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.restoring import Restoring
from ninfer_qwen3_5.program.snapshots import Snapshots
from ninfer_qwen3_5.program.transfers import Transfer, Transfers
from tests.model.stores.machine import StoreMachine

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]


def a_demotion_is_whole_before_its_copies_have_landed(patch: Patch) -> None:
    patch.setattr(Transfer, "done", lambda self: True)


def a_failed_copy_counts_as_whole(patch: Patch) -> None:
    real = Transfer.done

    def done(self: Any) -> bool:
        landed = real(self)
        self.failure = None
        return landed

    patch.setattr(Transfer, "done", done)


def the_pages_of_a_save_are_numbered_from_the_wrong_end(patch: Patch) -> None:
    real = Transfers.save

    def save(self: Any, slot: Any, pages: Any, extents: Any) -> Any:
        return real(self, slot, list(pages)[::-1], extents)

    patch.setattr(Transfers, "save", save)


def a_save_relies_on_nothing(patch: Patch) -> None:
    patch.setattr(HostHolders, "rely", lambda self, pages: None)
    patch.setattr(HostHolders, "relied", lambda self, pages: None)


def the_host_replica_goes_with_its_first_keeper(patch: Patch) -> None:
    patch.setattr(HostHolders, "keeps", lambda self, page, besides=0: False)


def the_device_page_goes_with_the_first_that_leaves(patch: Patch) -> None:
    patch.setattr(HostHolders, "deserted", lambda self, page, leaving=0, gone=0: True)


def a_restored_state_goes_to_the_spare_slot(patch: Patch) -> None:
    real = HostTier.load

    def load(self: Any, slot: int, image: Any, lease: Any, units: Any) -> Any:
        return real(self, slot + 1, image, lease, units)

    patch.setattr(HostTier, "load", load)


def an_undone_restore_keeps_its_slots(patch: Patch) -> None:
    patch.setattr(Restoring, "undo", lambda self: setattr(self._kept, "moving", False))


def a_checkpoint_is_deleted_without_its_image(patch: Patch) -> None:
    patch.setattr(HostTier, "free", lambda self, image: None)


def a_takeover_leaves_its_host_replica_in_the_books(patch: Patch) -> None:
    patch.setattr(Replicas, "consumed", lambda self, kept, pages: None)


def a_tail_that_others_need_is_written_in_place(patch: Patch) -> None:
    patch.setattr(ModelState, "copy_page", lambda self, source, target, columns: None)


def a_revoked_snapshot_stays_on_the_host(patch: Patch) -> None:
    patch.setattr(HostHolders, "unhold", lambda self, pages, *, alone: None)


def a_fork_begins_with_the_state_of_another_slot(patch: Patch) -> None:
    real = ModelState.copy_slot

    def copy_slot(self: Any, source: int, target: int) -> None:
        real(self, max(0, source - 1), target)

    patch.setattr(ModelState, "copy_slot", copy_slot)


def a_dropped_replica_keeps_its_slot(patch: Patch) -> None:
    real = StateSlots.release

    def release(self: Any, slot: Any) -> None:
        if not self._images[slot].published:
            real(self, slot)

    patch.setattr(StateSlots, "release", release)


def a_loaded_page_is_not_taken_in(patch: Patch) -> None:
    patch.setattr(PageReplicas, "publish_devices", lambda self, pins, units: None)


def a_resumed_snapshot_keeps_its_extents(patch: Patch) -> None:
    patch.setattr(Snapshots, "resumed", lambda self, resume, pages: self.table.remove(resume))


def a_restore_reserves_no_tail(patch: Patch) -> None:
    patch.setattr(Checkpoints, "fork_demand", _without_the_tail)


def _without_the_tail(self: Any, ref: Any) -> Any:
    return Demand({"main": self._tier.load_units(self.get(ref).history)})


def noticed(bug: Bug, walks: int, steps: int) -> str | None:
    """What some of a few walks finds of ``bug``, and where; None if nothing."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        for seed in range(walks):
            machine, done = StoreMachine(seed), 0
            try:
                for done in range(steps):  # noqa: B007 - the last one is told
                    machine.step()
                machine.close()
            except (AssertionError, NinferError) as error:
                said = str(error).splitlines()[0]
                return f"walk {seed}, step {done}: {type(error).__name__}: {said}"
    return None


BUGS: tuple[Bug, ...] = (
    a_demotion_is_whole_before_its_copies_have_landed,
    a_failed_copy_counts_as_whole,
    the_pages_of_a_save_are_numbered_from_the_wrong_end,
    a_save_relies_on_nothing,
    the_host_replica_goes_with_its_first_keeper,
    the_device_page_goes_with_the_first_that_leaves,
    a_restored_state_goes_to_the_spare_slot,
    an_undone_restore_keeps_its_slots,
    a_checkpoint_is_deleted_without_its_image,
    a_takeover_leaves_its_host_replica_in_the_books,
    a_tail_that_others_need_is_written_in_place,
    a_revoked_snapshot_stays_on_the_host,
    a_fork_begins_with_the_state_of_another_slot,
    a_dropped_replica_keeps_its_slot,
    a_loaded_page_is_not_taken_in,
    a_resumed_snapshot_keeps_its_extents,
    a_restore_reserves_no_tail,
)
