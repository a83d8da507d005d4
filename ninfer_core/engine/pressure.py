"""What is given up when room is short, and in which order."""

from __future__ import annotations

from ninfer_core.contract.checkpoints import Plan, ResumeKind
from ninfer_core.contract.program import Program
from ninfer_core.contract.resources import CheckpointRef, Shortfall
from ninfer_core.engine.contexts import ContextDriver
from ninfer_core.engine.reclaiming import Demotion, Relief
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.resource_manager import ResourceManager
from ninfer_core.engine.scheduler import Scheduler


class Pressure:
    """Optional cache first, then the Snapshots of younger paused requests, then younger residents.

    Nobody is paused blindly: only for an older request whose shortfall the first two left open,
    and only while no transaction runs that may bring room by itself.
    """

    def __init__(
        self,
        program: Program,
        scheduler: Scheduler,
        resources: ResourceManager,
        contexts: ContextDriver,
    ) -> None:
        self._program = program
        self._scheduler = scheduler
        self._resources = resources
        self._contexts = contexts

    def reclaim(
        self, record: RequestRecord, shortfall: Shortfall, keep: CheckpointRef | None = None
    ) -> Relief:
        """Give up some optional cache on the short axis, never ``keep``, or begin to copy some to
        the host, so that room comes when that has settled."""
        spare, never = keep or record.wanted, keep is not None
        busy = self._contexts.open
        answer = self._resources.relieve(shortfall, spare, keep=never, busy=busy)
        if not isinstance(answer, Demotion):
            return answer
        self._contexts.demote(answer)
        return Relief.COMING if self._contexts.open else Relief.FREED

    def relieve(
        self, record: RequestRecord, shortfall: Shortfall, keep: CheckpointRef | None = None
    ) -> Relief:
        """The same; with no cache left to give up, the Snapshots of younger paused requests go."""
        relief = self.reclaim(record, shortfall, keep)
        if relief is Relief.NOTHING and keep is None and self._revoke(record, shortfall.axis):
            return Relief.FREED
        return relief

    def pause_for(self, record: RequestRecord) -> bool:
        """Begin to pause the youngest resident that may make way; False when none may.

        One in a round that was launched ahead is kept out of the next round and paused then.
        """
        if self._contexts.open:
            return True
        for victim in self._scheduler.victims(record):
            if victim.flying:
                victim.held_back = True
                return True
            if self.pause(victim):
                return True
        return False

    def pause(self, victim: RequestRecord) -> bool:
        """Begin to pause ``victim``; False when the Program cannot. A Snapshot takes the place of
        optional cache on the host."""
        for kind in (ResumeKind.SNAPSHOT, ResumeKind.REPLAY):
            outcome = self._program.plan_pause(victim.held_sequence(), kind)
            while isinstance(outcome, Shortfall) and self._resources.reclaim(outcome):
                outcome = self._program.plan_pause(victim.held_sequence(), kind)
            if isinstance(outcome, Plan):
                self._contexts.pause(victim, outcome)
                return True
        return False

    def revoke_own(self, record: RequestRecord, axis: str) -> bool:
        """Turn the Snapshot of ``record`` itself into a Replay if that frees ``axis``."""
        resume = record.resume
        if (
            resume is None
            or resume.kind is not ResumeKind.SNAPSHOT
            or not resume.holds.amount(axis)
        ):
            return False
        record.resume = self._program.revoke(resume)
        self._resources.reclaimer.changed()
        return True

    def _revoke(self, record: RequestRecord, axis: str) -> bool:
        younger = (r for r in reversed(self._scheduler.paused) if r.ticket > record.ticket)
        return any(self.revoke_own(other, axis) for other in younger)
