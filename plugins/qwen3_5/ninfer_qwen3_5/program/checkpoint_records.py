"""What the Program knows of one restore point."""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer_core.contract.checkpoints import Tier
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.store.histories import History
from ninfer_core.store.host_arena import Extent
from ninfer_core.store.state_slots import Slot
from ninfer_qwen3_5.program.identity import ExecutedPrefix
from ninfer_qwen3_5.program.provenance import Trail
from ninfer_qwen3_5.program.sequence import Health


@dataclass(frozen=True, slots=True)
class CaptureOf:
    """The plan to make a checkpoint of a resident sequence."""

    sequence: SequenceHandle


@dataclass(slots=True)
class Checkpoint:
    """One restore point: what was executed, how, and where its outcome lies.

    The state image lies in ``slot``, in the host extent ``image``, or in both; with a slot every
    page lies on the device, with an image every page lies on the host. ``slot`` is published and
    ``history`` frozen, so that neither is written again. ``moving`` says that a transaction copies
    it. ``source`` is the health of the sequence that it was made of, ``own`` turns bad when an
    adopter of it breaks.
    """

    prefix: ExecutedPrefix
    trail: Trail
    history: History
    slot: Slot | None
    source: Health
    own: Health = field(default_factory=Health)
    image: Extent | None = None
    moving: bool = False

    @property
    def frontier(self) -> int:
        return self.prefix.frontier

    @property
    def usable(self) -> bool:
        return not (self.source.broken or self.own.broken)

    @property
    def alone(self) -> bool:
        """Whether it lies on the host and nowhere else."""
        return self.slot is None

    @property
    def tiers(self) -> frozenset[Tier]:
        device = frozenset[Tier]() if self.slot is None else frozenset({Tier.DEVICE})
        return device if self.image is None else device | {Tier.HOST}
