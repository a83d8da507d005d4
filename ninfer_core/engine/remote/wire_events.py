"""Events of requests as plain tuples, which pickle thirty times quicker than the dataclasses.

An entry is ``(request number, code, …)``; the code of a delta is its channel's index. Events that
come once or with every chunk go as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.events import (
    Channel,
    Delta,
    Failed,
    Finished,
    GenerationEvent,
    GenerationResult,
    ToolDelta,
)
from ninfer_core.contract.sampling import TokenLogprobs, TopLogprob
from ninfer_core.engine.remote.wire_errors import pack_error, unpack_error

Entry = tuple[Any, ...]
_CHANNELS: Final = tuple(Channel)
_CODES: Final = {channel: code for code, channel in enumerate(_CHANNELS)}
_WHOLE: Final = len(_CHANNELS)
_FINISHED: Final = _WHOLE + 1
_FAILED: Final = _WHOLE + 2


def pack_event(number: int, event: GenerationEvent, failure: EngineFailure | None = None) -> Entry:
    """``failure`` is why the engine died, when that made the event."""
    if isinstance(event, Delta):
        return _pack_delta(number, event)
    if isinstance(event, Finished):
        return (number, _FINISHED, *_pack_result(event.result))
    if not isinstance(event, Failed):
        return (number, _WHOLE, event)
    partial = None if event.partial is None else _pack_result(event.partial)
    cause = None if failure is None else pack_error(failure)
    return (number, _FAILED, pack_error(event.error), partial, cause)


def unpack_event(entry: Entry) -> tuple[GenerationEvent, EngineFailure | None]:
    code = entry[1]
    if code < _WHOLE:
        return _unpack_delta(entry), None
    if code == _WHOLE:
        return entry[2], None
    if code == _FINISHED:
        return Finished(_unpack_result(*entry[2:])), None
    _, _, error, partial, cause = entry
    request_error, failure = unpack_error(error), cause and unpack_error(cause)
    assert isinstance(request_error, RequestError)
    assert failure is None or isinstance(failure, EngineFailure)
    return Failed(request_error, partial and _unpack_result(*partial)), failure


def _pack_delta(number: int, delta: Delta) -> Entry:
    code = _CODES[delta.channel]
    if not delta.logprobs and delta.tool is None:
        return (number, code, delta.text, delta.token_ids)
    tool = delta.tool and (delta.tool.index, delta.tool.id, delta.tool.name, delta.tool.arguments)
    return (number, code, delta.text, delta.token_ids, _pack_logprobs(delta.logprobs), tool)


def _unpack_delta(entry: Entry) -> Delta:
    channel = _CHANNELS[entry[1]]
    if len(entry) == 4:
        return Delta(channel=channel, text=entry[2], token_ids=entry[3])
    _, _, text, token_ids, logprobs, tool = entry
    return Delta(
        channel=channel,
        text=text,
        token_ids=token_ids,
        logprobs=_unpack_logprobs(logprobs),
        tool=tool and ToolDelta(index=tool[0], id=tool[1], name=tool[2], arguments=tool[3]),
    )


def _pack_result(result: GenerationResult) -> Entry:
    bare = replace(result, logprobs=(), prompt_logprobs=())
    return bare, _pack_logprobs(result.logprobs), _pack_logprobs(result.prompt_logprobs)


def _unpack_result(bare: GenerationResult, logprobs: Entry, prompt: Entry) -> GenerationResult:
    if not (logprobs or prompt):
        return bare
    return replace(
        bare, logprobs=_unpack_logprobs(logprobs), prompt_logprobs=_unpack_logprobs(prompt)
    )


def _pack_logprobs(rows: Iterable[TokenLogprobs | None]) -> Entry:
    return tuple(
        row and (row.token_id, row.logprob, tuple((top.token_id, top.logprob) for top in row.top))
        for row in rows
    )


def _unpack_logprobs(rows: Entry) -> tuple[Any, ...]:
    return tuple(
        row and TokenLogprobs(row[0], row[1], tuple(TopLogprob(*top) for top in row[2]))
        for row in rows
    )
