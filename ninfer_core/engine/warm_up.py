"""The requests an engine answers before anybody else's: whatever sets itself up at a first use does
so in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.requests import (
    CacheMode,
    CacheRequest,
    ConsumerMode,
    GenerationOptions,
    PromptInput,
)
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.core import EngineCore
from ninfer_core.engine.handle import RequestHandle
from ninfer_core.engine.ingress import Ingress
from ninfer_core.engine.lifecycle import Lifecycle

NEW_TOKENS = 3
PATIENCE = 3600.0
"""Seconds in the queue: at a first start kernels may be compiled while others wait."""

_LOOKS = 64
"""Cycles to wait for the last round launched ahead, of which there is at most one."""

_GREEDY = SamplingParams(temperature=0.0, seed=0)
_DRAWN = SamplingParams(
    temperature=0.8,
    top_k=20,
    top_p=0.95,
    min_p=0.01,
    presence_penalty=0.5,
    frequency_penalty=0.1,
    repetition_penalty=1.1,
    seed=1,
)


@dataclass(frozen=True, slots=True)
class WarmUpSizes:
    """What was fixed at start: requests at once, and tokens."""

    max_concurrency: int
    prefill_chunk: int
    max_context: int
    vocab_size: int

    def prompt_lengths(self) -> list[int]:
        """Every power of two up to a chunk and its successor, the chunk and its successor: one
        length of each size class that a kernel may tell apart, and a prompt of two chunks. Between
        them what libraries of products may tell apart by rows, which load each kernel at its first
        use: 96, 192 and multiples of 128."""
        top = max(1, self.max_context - NEW_TOKENS)
        powers = [1 << place for place in range(self.prefill_chunk.bit_length())]
        sizes = {size + more for size in (*powers, self.prefill_chunk) for more in (0, 1)}
        sizes |= {size for size in (96, 192, *range(128, 2048, 128)) if size < self.prefill_chunk}
        return sorted({min(size, top) for size in sizes})


def warm_up(ingress: Ingress, lifecycle: Lifecycle, sizes: WarmUpSizes) -> None:
    """Answer one prompt of every length, then a greedy and a drawn batch.

    The rows of a batch join one by one and end one by one, so that every number of rows runs.
    Raises EngineFailure when a request fails: an engine that cannot answer these is not ready.
    """
    for length in sizes.prompt_lengths():
        _answer([ingress.submit(_prompt(length, 0, sizes), _options(_GREEDY, 1))])
    for sampling in (_GREEDY, _DRAWN):
        rows = range(sizes.max_concurrency)
        prompts = [_prompt(min(4 + row, sizes.max_context), row, sizes) for row in rows]
        options = _batch(sampling, len(rows))
        with lifecycle.together():
            handles = [ingress.submit(*pair) for pair in zip(prompts, options, strict=True)]
        _answer(handles)


def start_afresh(core: EngineCore, lifecycle: Lifecycle) -> None:
    """Wait until the warm-up holds nothing any more, and set the counters back.

    Raises EngineFailure naming what is still held.
    """
    for _ in range(_LOOKS):
        held = lifecycle.ask(core.start_afresh)
        if not held:
            return
    raise EngineFailure(f"after the warm-up the engine still holds {held}")


def _answer(handles: Sequence[RequestHandle]) -> None:
    try:
        for handle in handles:
            handle.result()
    except RequestError as error:
        raise EngineFailure(
            f"a request of the warm-up failed: {type(error).__name__}: {error.message}"
        ) from error
    finally:
        for handle in handles:
            handle.close()


def _prompt(length: int, salt: int, sizes: WarmUpSizes) -> PromptInput:
    ids = [(7 * place + 13 * salt + 1) % sizes.vocab_size for place in range(length)]
    return PromptInput(token_ids=ids, cache=CacheRequest(mode=CacheMode.DISABLED))


def _batch(sampling: SamplingParams, rows: int) -> Iterator[GenerationOptions]:
    """The first drawn row asks for log-probabilities."""
    for row in range(rows):
        top = 5 if sampling is _DRAWN and row == 0 else None
        yield _options(sampling, NEW_TOKENS + rows, top)


def _options(sampling: SamplingParams, tokens: int, top: int | None = None) -> GenerationOptions:
    return GenerationOptions(
        sampling=sampling,
        max_new_tokens=tokens,
        ignore_eos=True,
        logprobs=top,
        prompt_logprobs=top,
        queue_timeout=PATIENCE,
        consumer=ConsumerMode.AGGREGATE,
    )
