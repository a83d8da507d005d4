"""Replicas of checkpoints: what each action on one would free, and the actions themselves."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_core.contract.checkpoints import CheckpointAction
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import ResourceVector
from ninfer_core.store.logical_pages import LogicalPage
from ninfer_qwen3_5.program.checkpoint_records import Checkpoint
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.stores import MAIN, Stores

Pages = tuple[LogicalPage, ...]


class Replicas:
    """Without a ``tier`` everything lies on the device and is deleted whole."""

    def __init__(self, stores: Stores, tier: HostTier | None) -> None:
        self._stores = stores
        self._tier = tier

    def actions(self, kept: Checkpoint) -> Mapping[CheckpointAction, ResourceVector]:
        """What each action would free now: for a demotion, once the device replica behind it is
        dropped."""
        pages = self.pages(kept)
        found = {CheckpointAction.DELETE: self._deleted(kept, pages)}
        if self._tier is None or not kept.usable:
            return found
        if kept.image is None:
            found[CheckpointAction.DEMOTE] = self._off_device(kept, pages)
        elif kept.slot is not None:
            found[CheckpointAction.DROP_DEVICE] = self._off_device(kept, pages)
            found[CheckpointAction.DROP_HOST] = self._off_host(kept, pages)
        return found

    def drop(self, kept: Checkpoint, action: CheckpointAction) -> ResourceVector:
        """Carry out what needs no copy; returns what became free."""
        frees = self.actions(kept).get(action)
        if frees is None or action is CheckpointAction.DEMOTE:
            raise EngineFailure(f"{action.value} is not among the actions of a checkpoint")
        if kept.moving:
            raise EngineFailure("a checkpoint was dropped while a transaction moves it")
        if action is CheckpointAction.DELETE:
            self.release(kept)
        elif action is CheckpointAction.DROP_DEVICE:
            self._leave_device(kept)
        else:
            self._leave_host(kept)
        return frees

    def release(self, kept: Checkpoint) -> None:
        """Give back all that it holds."""
        pages = self.pages(kept)
        self._stores.histories.release(kept.history)
        if kept.slot is not None:
            self._stores.slots.release(kept.slot)
        self._off_books(kept, pages)

    def consumed(self, kept: Checkpoint, pages: Pages) -> None:
        """Its slot and ``pages`` have become a sequence's; what it held on the host goes."""
        self._off_books(kept, pages)

    def alone_in(self, kept: Checkpoint) -> bool:
        """Whether nobody else holds the state image."""
        return kept.slot is not None and self._stores.slots.may_move(kept.slot)

    def pages(self, kept: Checkpoint) -> Pages:
        return self._stores.context.spaces[MAIN].directory(kept.history.spaces[MAIN])

    def alone_on_host(self, page: LogicalPage) -> int:
        """Its references by what lies on the host and nowhere else."""
        return 0 if self._tier is None else self._tier.holders.alone(page)

    def _off_books(self, kept: Checkpoint, pages: Pages) -> None:
        if self._tier is None:
            return
        if kept.image is not None:
            self._tier.free(kept.image)
            self._tier.holders.unhold(pages, alone=kept.alone)
            self._tier.drop_host(pages)
        self._tier.drop_device(pages)

    def _leave_device(self, kept: Checkpoint) -> None:
        assert self._tier is not None
        assert kept.slot is not None
        pages = self.pages(kept)
        self._stores.slots.release(kept.slot)
        kept.slot = None
        self._tier.holders.leave_device(pages)
        self._tier.drop_device(pages)

    def _leave_host(self, kept: Checkpoint) -> None:
        assert self._tier is not None
        assert kept.image is not None
        pages = self.pages(kept)
        self._tier.free(kept.image)
        kept.image = None
        self._tier.holders.unhold(pages, alone=False)
        self._tier.drop_host(pages)

    def _slots(self, kept: Checkpoint) -> int:
        return int(self.alone_in(kept))

    # Who holds a page holds all before it, on the same tiers. So pages are looked at from the end
    # up to the first that somebody else needs: the cost grows with what becomes free, not with
    # the context.

    def _off_device(self, kept: Checkpoint, pages: Pages) -> ResourceVector:
        """The slot, and pages that nobody else needs on the device."""
        assert self._tier is not None
        freed = 0
        for page in reversed(pages):
            if not self._tier.holders.deserted(page, leaving=1):
                break
            freed += idle(page)
        return ResourceVector(state_slots=self._slots(kept), pages={MAIN: freed})

    def _off_host(self, kept: Checkpoint, pages: Pages) -> ResourceVector:
        """The image, and extents of pages that no other holder keeps on the host."""
        assert kept.image is not None
        return ResourceVector(host_bytes=kept.image.size + self._extents(pages, own=1))

    def _deleted(self, kept: Checkpoint, pages: Pages) -> ResourceVector:
        """Pages with no other reference; pages whose other references are all alone on the host,
        and extents that none of the others keeps."""
        units, host = 0, 0
        for page in reversed(pages):
            if page.refs == 1:
                units += page.device is not None and not page.pins
            elif self._deserted(page, kept):
                units += idle(page) and page.host is not None
            else:
                break
        if self._tier is not None:
            host = self._extents(pages, own=int(kept.image is not None))
        if kept.image is not None:
            host += kept.image.size
        return ResourceVector(state_slots=self._slots(kept), host_bytes=host, pages={MAIN: units})

    def _deserted(self, page: LogicalPage, kept: Checkpoint) -> bool:
        """Whether nobody needs ``page`` on the device but ``kept``, which goes."""
        if self._tier is None:
            return False
        return self._tier.holders.deserted(page, leaving=-int(kept.alone), gone=1)

    def _extents(self, pages: Pages, own: int) -> int:
        """Bytes of the extents that go with ``own`` of their keepers."""
        assert self._tier is not None
        holders, size = self._tier.holders, 0
        for page in reversed(pages):
            if holders.keepers(page) > own:
                break
            dies = page.refs == 1 and not page.pins
            if dies or not holders.keeps(page, own):
                size += _extent_bytes(page)
        return size


def idle(page: LogicalPage) -> bool:
    """On the device, in no use there by a sequence or a copy."""
    return page.device is not None and not (page.active or page.pins or page.writer is not None)


def _extent_bytes(page: LogicalPage) -> int:
    return page.host.location.size if page.host is not None else 0
