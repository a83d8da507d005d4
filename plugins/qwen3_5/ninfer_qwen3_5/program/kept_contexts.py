"""The contract's entry points that concern checkpoints alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ninfer_core.contract.checkpoints import (
    CheckpointAction,
    CheckpointFacts,
    Plan,
    RestoreWork,
)
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.resources import (
    CheckpointRef,
    NeverFits,
    ResourceVector,
    Shortfall,
)
from ninfer_qwen3_5.program.checkpoint_faults import blamed_on_cache
from ninfer_qwen3_5.program.context import Contexts
from ninfer_qwen3_5.program.forgetting import forget_all
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.stores import Stores


class KeptContexts:
    """A part of the Program (contract: ``Program``). What breaks in it is a CacheFault."""

    def __init__(self, contexts: Contexts, stores: Stores, host: HostTier | None) -> None:
        self._contexts = contexts
        self._checkpoints = contexts.checkpoints
        self._stores = stores
        self._host = host

    @blamed_on_cache("the facts of a kept context")
    def facts(self, ref: CheckpointRef) -> CheckpointFacts:
        return self._checkpoints.facts(ref)

    @blamed_on_cache("what a kept context holds")
    def actions(self, ref: CheckpointRef) -> Mapping[CheckpointAction, ResourceVector]:
        return self._checkpoints.actions(ref)

    @blamed_on_cache("what kept contexts hold together")
    def joint(self, axis: str) -> Sequence[frozenset[CheckpointRef]]:
        return self._checkpoints.joint(axis)

    @blamed_on_cache("the way back to a kept context")
    def restore_work(self, ref: CheckpointRef, prepared: PreparedPrompt) -> RestoreWork | None:
        return self._checkpoints.restore_work(ref, prepared)

    @blamed_on_cache("a kept context that is given up")
    def drop(self, ref: CheckpointRef, action: CheckpointAction) -> ResourceVector:
        return self._checkpoints.drop(ref, action)

    @blamed_on_cache("a kept context on its way to the host")
    def plan_demote(self, ref: CheckpointRef) -> Plan | Shortfall | NeverFits:
        """NeverFits without a host tier, and for one that may not be kept or lies there."""
        return self._contexts.plan_demote(ref)

    def forget(self) -> tuple[CheckpointRef, ...]:
        return forget_all(self._contexts, self._stores, self._host)
