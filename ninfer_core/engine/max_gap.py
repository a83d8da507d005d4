"""The prefill chunk of an engine that was given a longest gap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import Frontend, PreparedPrompt
from ninfer_core.contract.program import Program
from ninfer_core.contract.requests import CacheMode, CacheRequest, PromptInput
from ninfer_core.engine.gap_driver import NoRoom
from ninfer_core.engine.gap_measure import GapMeasure, least_context
from ninfer_core.engine.gap_table import choose_chunk
from ninfer_core.engine.lifecycle import Lifecycle
from ninfer_core.engine.start_options import InvalidOption


def keep_gap(
    bound_ms: float,
    program: Program,
    frontend: Frontend,
    lifecycle: Lifecycle,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Measure, choose and fix the chunk for good. Says what was measured and chosen.

    Raises InvalidOption when no chunk keeps the bound, or the context is too short to time one.
    """
    limits = program.limits
    least = least_context(limits.draft_tokens)
    if limits.max_context < least:
        raise InvalidOption(
            f"max_gap_ms is given; with a max_context of {limits.max_context} tokens no round can "
            "be timed",
            hint=f"leave it out, or give --max-context {least} or more",
        )
    measure = GapMeasure(program, partial(_prompt, frontend), clock, bound_ms / 1e3)
    try:
        table = lifecycle.ask(measure.table)
    except NoRoom as error:
        raise EngineFailure(f"the times of chunks could not be measured: {error}") from error
    chunk = choose_chunk(table, bound_ms)
    lifecycle.ask(partial(program.limit_chunk, chunk))
    return {"bound_ms": bound_ms, "chunk": chunk, **table.described()}


def _prompt(frontend: Frontend, length: int) -> PreparedPrompt:
    ids = [(7 * place + 1) % frontend.vocab_size for place in range(length)]
    return frontend.prepare(PromptInput(token_ids=ids, cache=CacheRequest(mode=CacheMode.DISABLED)))
