"""A clock that passes when units are launched, and a measure of chunks by it."""

from __future__ import annotations

from ninfer_core.contract.requests import PromptInput
from ninfer_core.contract.resources import ProgramLimits
from ninfer_core.engine.gap_measure import GapMeasure
from ninfer_core.testing.fake_instance import fake_opened
from ninfer_core.testing.fake_program import FakeProgram
from ninfer_core.testing.fake_transactions import FakeConfig

ROUND, TOKEN = 0.004, 0.0001
"""Seconds of a round, and of a token of a chunk at the root."""
FIRST = 30
"""How much longer a first unit of its kind takes."""


class Clock:
    """Time passes when units are launched: chunks take longer the deeper they start, and a prompt
    that is read whole takes ``whole`` seconds more. The first unit of each size in each quarter of
    the context takes ``first`` times as long, as does each of ``stalls``, counted in rounds."""

    def __init__(
        self,
        program: FakeProgram,
        deeper: float = 0.0,
        long_rows: float = 0.0,
        whole: float = 0.0,
        first: int = 1,
        stalls: frozenset[int] = frozenset(),
        slow_until: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.chunks: list[int] = []
        self.rounds: list[float] = []
        prefill, decode = program.launch_prefill, program.launch_decode

        def length(handle) -> int:
            return program.contexts.sequence(handle).frontier

        seen = set()

        def times(*kind) -> int:
            new = kind not in seen
            seen.add(kind)
            return (first if new else 1) * (2 if self.now < slow_until else 1)

        def launch_prefill(row):
            tokens, start = row.permit.need.tokens, length(row.sequence)
            self.chunks.append(tokens)
            took = tokens * TOKEN * (1 + deeper * start)
            self.now += took * times(tokens, 4 * start // program.limits.max_context)
            self.now += whole if row.permit.need.last else 0.0
            return prefill(row)

        def launch_decode(rows, *, ahead_of=None):
            took = ROUND + sum(long_rows * length(row.sequence) for row in rows)
            self.now += took * times(len(rows)) * (FIRST if len(self.rounds) in stalls else 1)
            self.rounds.append(self.now)
            return decode(rows, ahead_of=ahead_of)

        program.launch_prefill, program.launch_decode = launch_prefill, launch_decode

    def __call__(self) -> float:
        return self.now


def opened(pages=2000, **sizes):
    sizes = {"max_context": 1100, "max_concurrency": 3, "prefill_chunk": 256} | sizes
    limits = ProgramLimits(vocab_rows=64, **sizes)
    return fake_opened(limits, FakeConfig(pages=pages, slots=16))


def measured(made, bound=10.0, clocks=None, **law):
    program, frontend = made.instance.program, made.instance.frontend
    clock = Clock(program, **law)
    if clocks is not None:
        clocks.append(clock)

    def prompt(length):
        return frontend.prepare(PromptInput(token_ids=[1 + n % 60 for n in range(length)]))

    return GapMeasure(program, prompt, clock, bound).table()
