"""A whole fake instance, and a cache policy that keeps every end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ninfer_core.contract.cache import Demand, SaveOffer, SourceCandidate, Victim
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.program import Program, ScoringProgram
from ninfer_core.contract.resources import ProgramLimits, Shortfall
from ninfer_core.engine.opened import OpenedInstance
from ninfer_core.testing.fake_frontend import FakeFrontend
from ninfer_core.testing.fake_program import FakeProgram
from ninfer_core.testing.fake_transactions import FakeConfig

FAKE_LIMITS = ProgramLimits(max_context=64, max_concurrency=3, prefill_chunk=8, vocab_rows=64)


class KeepPolicy:
    """Keeps every end, adopts the deepest match, gives up the oldest first."""

    @property
    def keeps(self) -> bool:
        return True

    def rank_sources(
        self, prepared: PreparedPrompt, candidates: Sequence[SourceCandidate]
    ) -> Sequence[SourceCandidate]:
        return sorted(candidates, key=lambda candidate: -candidate.facts.frontier)

    def victims(self, shortfall: Shortfall, candidates: Sequence[Victim]) -> Sequence[Victim]:
        return candidates

    def admit(self, offer: SaveOffer) -> bool:
        return True

    def observe(self, demand: Demand) -> None:
        return None


class FakeScoring:
    """log p of token ``i`` is ``-i``."""

    def score(self, token_ids: Sequence[int], first_target: int) -> list[float]:
        return [-float(index) for index in range(first_target, len(token_ids))]

    def close(self) -> None:
        return None


class FakeInstance:
    """Implements ``contract.instance.ModelInstance``."""

    def __init__(self, program: Program | ScoringProgram, frontend: FakeFrontend) -> None:
        self.program = program
        self.frontend = frontend
        self.closed = 0

    @property
    def name(self) -> str:
        return "fake"

    def memory(self) -> Mapping[str, int]:
        return {"weights": 4096}

    def close(self) -> None:
        self.closed += 1
        self.program.close()


def fake_opened(
    limits: ProgramLimits = FAKE_LIMITS,
    config: FakeConfig | None = None,
    program: Program | ScoringProgram | None = None,
) -> OpenedInstance:
    """A fake instance ready for an engine; its Program and Frontend share one FaultPlan."""
    program = program or FakeProgram(limits, config)
    faults = program.faults if isinstance(program, FakeProgram) else None
    frontend = FakeFrontend(limits.max_context, limits.vocab_rows, faults)
    return OpenedInstance(
        instance=FakeInstance(program, frontend),
        architecture="FakeForCausalLM",
        source="fake",
        devices=("cpu",),
        max_context=limits.max_context,
    )


def fake_factory(
    limits: ProgramLimits = FAKE_LIMITS, config: FakeConfig | None = None
) -> Callable[[], OpenedInstance]:
    """An instance factory for ``Engine``."""
    return lambda: fake_opened(limits, config)
