"""Pages that several checkpoints hold, so that none of them frees one alone."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core.contract.resources import CheckpointRef
from ninfer_core.store.logical_pages import LogicalPage
from ninfer_qwen3_5.program.checkpoint_records import Checkpoint
from ninfer_qwen3_5.program.checkpoint_replicas import Replicas, idle


def joint_holders(
    kept: Iterable[tuple[CheckpointRef, Checkpoint]], replicas: Replicas
) -> list[frozenset[CheckpointRef]]:
    """For each idle page on the device the checkpoints that must go so that it can: at least two,
    none of them on its way; each group once. Pages that others need on the device have none."""
    pages: dict[int, LogicalPage] = {}
    holders: dict[int, list[tuple[CheckpointRef, Checkpoint]]] = {}
    for ref, one in kept:
        for page in replicas.pages(one):
            pages[page.generation] = page
            holders.setdefault(page.generation, []).append((ref, one))
    groups: dict[frozenset[CheckpointRef], None] = {}
    for number, page in pages.items():
        group = _must_go(page, holders[number], replicas)
        if len(group) > 1:
            groups[frozenset(group)] = None
    return list(groups)


def _must_go(
    page: LogicalPage, holders: list[tuple[CheckpointRef, Checkpoint]], replicas: Replicas
) -> list[CheckpointRef]:
    """With a copy on the host those that are on the device, without one all of them."""
    if not idle(page) or any(one.moving for _, one in holders):
        return []
    going = holders if page.host is None else [h for h in holders if not h[1].alone]
    others = page.refs - len(going) - (0 if page.host is None else replicas.alone_on_host(page))
    return [] if others else [ref for ref, _ in going]
