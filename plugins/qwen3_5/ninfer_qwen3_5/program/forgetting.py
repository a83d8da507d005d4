"""Going on without checkpoints whose records are wrong."""

from __future__ import annotations

from ninfer_core.contract.resources import CheckpointRef
from ninfer_qwen3_5.program.context import Contexts
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.stores import Stores


def forget_all(
    contexts: Contexts, stores: Stores, tier: HostTier | None
) -> tuple[CheckpointRef, ...]:
    """Delete every checkpoint that no transaction moves; returns those that one does.

    What else lives is counted anew and the rest given back, so that nothing stays behind of a
    checkpoint whose records are wrong. Raises EngineFailure if what lives is not sound.
    """
    moved, snapshots = contexts.checkpoints.forget(), contexts.snapshots
    paused = [] if snapshots is None else list(snapshots.table.values())
    histories = [one.sequence.history for one in paused] + [kept.history for _, kept in moved]
    images = [one.image for one in paused]
    images += [kept.image for _, kept in moved if kept.image is not None]
    slots = [kept.slot for _, kept in moved if kept.slot is not None]
    stores.context.keep_only(histories, slots, images)
    if tier is not None and snapshots is not None:
        tier.holders.recount([*snapshots.held(), *contexts.checkpoints.held()])
    stores.context.check()
    contexts.check()
    return tuple(ref for ref, _ in moved)
