"""The result of a request, from its record and its output session."""

from __future__ import annotations

from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.events import (
    Failed,
    Finished,
    FinishReason,
    GenerationResult,
    Timings,
    Usage,
)
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.engine.request_record import RequestRecord, Stopwatch


def terminal_event(record: RequestRecord) -> Finished | Failed:
    """The one end of a request whose ``ending`` is known. A Frontend that cannot sum the output up
    fails this request alone."""
    try:
        return _terminal_event(record)
    except EngineFailure:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Failed(RequestError(f"the output could not be summed up: {said}"))


def _terminal_event(record: RequestRecord) -> Finished | Failed:
    ending = record.ending
    if isinstance(ending, RequestError):
        partial = build_result(record, FinishReason.CANCELLED) if record.started else None
        return Failed(ending, partial)
    if ending is None:
        raise EngineFailure("a request ended without a reason")
    if ending is not FinishReason.CANCELLED:
        _check_scored(record)
    return Finished(build_result(record, ending))


def build_result(record: RequestRecord, reason: FinishReason) -> GenerationResult:
    """Everything that was committed so far, under ``reason``."""
    summary = record.session.summary()
    return GenerationResult(
        text=summary.text,
        reasoning=summary.reasoning,
        tool_calls=summary.tool_calls,
        token_ids=tuple(record.tokens),
        finish_reason=reason,
        usage=Usage(
            prompt_tokens=record.prompt_tokens,
            completion_tokens=len(record.tokens),
            cached_tokens=record.watch.cached_tokens,
            reasoning_tokens=summary.reasoning_tokens,
        ),
        timings=_timings(record.watch),
        logprobs=tuple(record.logprobs),
        prompt_logprobs=_prompt_logprobs(record),
        stop_match=record.stop_match,
        notes=record.notes,
        warnings=summary.warnings,
    )


def _prompt_logprobs(record: RequestRecord) -> tuple[TokenLogprobs | None, ...]:
    """One entry per prompt token; nothing stands before the first, so it has None."""
    if record.rules.prompt_logprobs is None or not record.started:
        return ()
    return (None, *record.scored)


def _check_scored(record: RequestRecord) -> None:
    if record.rules.prompt_logprobs is None:
        return
    if len(record.scored) != record.prompt_tokens - 1:
        raise EngineFailure(
            f"{len(record.scored)} of {record.prompt_tokens - 1} prompt positions were scored"
        )


def _timings(watch: Stopwatch) -> Timings:
    ended = watch.ended if watch.ended is not None else watch.prepared
    bound = watch.bound if watch.bound is not None else ended
    first = watch.first_token if watch.first_token is not None else ended
    return Timings(
        queue=bound - watch.prepared,
        prepare=watch.prepared - watch.submitted,
        prefill=first - bound,
        decode=ended - first,
        host=max(0.0, ended - bound - watch.device),
        device=watch.device,
        rounds=watch.rounds,
        drafted=tuple(watch.drafted),
        accepted=tuple(watch.accepted),
        pauses=watch.pauses,
        replays=watch.replays,
        restores=watch.restores,
        restored_bytes=watch.restored_bytes,
        cached_tokens=watch.cached_tokens,
        reuse_reason=watch.reuse_reason,
        reuse_point=watch.reuse_point,
        reuse_tier=watch.reuse_tier,
        captures=watch.captures,
    )
