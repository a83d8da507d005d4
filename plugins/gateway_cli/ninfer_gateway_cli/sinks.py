"""The two forms of an answer: text as it comes, or one JSON object at the end."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final, TextIO

from ninfer_core.console import say
from ninfer_core.contract.events import (
    Channel,
    Delta,
    FinishReason,
    GenerationResult,
    GenerationStart,
    Usage,
)
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_gateway_cli.report import tool_line

TokenBytes = Callable[[Sequence[int]], list[bytes]]
_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"


class TextSink:
    """Content to stdout, reasoning and notes to stderr, as they come."""

    def __init__(self) -> None:
        self._channel = Channel.CONTENT
        self._open_line = False
        self._dim = sys.stderr.isatty()

    def start(self, start: GenerationStart) -> None:
        for note in start.notes:
            say("note", note)

    def delta(self, delta: Delta) -> None:
        if delta.text and delta.channel is not Channel.TOOL_CALL:
            self._switch(delta.channel)
            self._write(delta.text)

    def end(self, result: GenerationResult | None) -> None:
        """Close the last line; whole tool calls go to stderr in a readable form."""
        self._switch(Channel.CONTENT)
        if self._open_line:
            _put(sys.stdout, "\n")
        for call in result.tool_calls if result else ():
            _put(sys.stderr, f"{tool_line(call)}\n")

    def fail(self) -> None:
        """Close the last line of an answer that an error ended."""
        self.end(None)

    def _switch(self, channel: Channel) -> None:
        if channel is self._channel:
            return
        if self._channel is Channel.REASONING:
            _put(sys.stderr, f"{_PLAIN if self._dim else ''}\n")
        elif self._dim:
            _put(sys.stderr, _DIM)
        self._channel = channel

    def _write(self, text: str) -> None:
        if self._channel is Channel.REASONING:
            _put(sys.stderr, text)
            return
        _put(sys.stdout, text)
        self._open_line = not text.endswith("\n")


class RawSink:
    """Every token's exact spelling to stdout, special tokens included."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def start(self, start: GenerationStart) -> None:
        for note in start.notes:
            say("note", note)

    def delta(self, delta: Delta) -> None:
        if delta.token_ids:
            spelling = b"".join(self._token_bytes(delta.token_ids))
            _put(sys.stdout, self._decoder.decode(spelling))

    def end(self, result: GenerationResult | None) -> None:
        _put(sys.stdout, self._decoder.decode(b"", final=True) + "\n")

    def fail(self) -> None:
        """Close the last line of an answer that an error ended."""
        self.end(None)


class JsonSink:
    """Collects the answer and prints one object."""

    def __init__(self, facts: dict[str, Any], extras: Callable[[GenerationResult], Any]) -> None:
        self._facts = facts
        self._extras = extras
        self._notes: tuple[str, ...] = ()
        self._deltas: list[Delta] = []

    def start(self, start: GenerationStart) -> None:
        self._notes = start.notes

    def delta(self, delta: Delta) -> None:
        self._deltas.append(delta)

    def end(self, result: GenerationResult | None) -> None:
        """Print; without a result what had arrived, marked as cancelled, without usage."""
        answer = self._unfinished() if result is None else _answer(result) | self._extras(result)
        print(json.dumps(self._facts | answer, ensure_ascii=False), flush=True)  # noqa: T201

    def fail(self) -> None:
        """Print nothing: the one object is the error's."""

    def _unfinished(self) -> dict[str, Any]:
        return {
            "text": "".join(d.text for d in self._deltas if d.channel is Channel.CONTENT),
            "reasoning": "".join(d.text for d in self._deltas if d.channel is Channel.REASONING),
            "tool_calls": [],
            "finish_reason": FinishReason.CANCELLED.value,
            "stop_match": None,
            "usage": None,
            "timings": None,
            "notes": self._notes,
            "warnings": [],
        }


def _answer(result: GenerationResult) -> dict[str, Any]:
    return {
        "text": result.text,
        "reasoning": result.reasoning,
        "tool_calls": [asdict(call) for call in result.tool_calls],
        "finish_reason": result.finish_reason.value,
        "stop_match": result.stop_match,
        "usage": _usage(result.usage),
        "timings": asdict(result.timings),
        "notes": result.notes,
        "warnings": result.warnings,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return asdict(usage) | {"total_tokens": usage.total_tokens}


def logprob_rows(rows: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> list[dict[str, Any]]:
    """One object for each generated token: id, spelling, log-probability, alternatives."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        spelling = token_bytes([token_id])[0].decode(errors="replace")
        return {"token_id": token_id, "token": spelling, "logprob": logprob}

    return [
        entry(row.token_id, row.logprob)
        | {"top": [entry(top.token_id, top.logprob) for top in row.top]}
        for row in rows
    ]


def _put(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
