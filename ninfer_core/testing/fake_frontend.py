"""A Frontend over the fake model's tokens: letters for text, held-back pieces, forced closing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ninfer_core.contract.errors import (
    ContextLengthExceeded,
    EngineFailure,
    InvalidPrompt,
    InvalidSchema,
)
from ninfer_core.contract.events import Channel, Delta, FinishReason
from ninfer_core.contract.frontend import (
    ColumnState,
    CompiledGrammar,
    GrammarSource,
    OutputPreview,
    OutputSpan,
    OutputSummary,
    PreparedPrompt,
    PromptIdentity,
    RestoreKind,
    RestorePoint,
)
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.testing.fake_faults import FaultPlan
from ninfer_core.testing.fake_law import CLOSE_TOKENS, STOP_TOKEN

HELD_BACK_EVERY = 5
"""Tokens divisible by this are half a character: their text waits for the next token."""


def text_of(tokens: Sequence[int]) -> str:
    """The whole text of ``tokens``; STOP_TOKEN has none."""
    return "".join(chr(97 + token % 26) for token in tokens if token != STOP_TOKEN)


@dataclass(frozen=True, slots=True)
class FakeGrammar:
    """Compiled ``dead:N``: after N tokens nothing is legal; ``free`` allows everything."""

    dead_after: int | None
    memory_bytes: int = 64


@dataclass(frozen=True, slots=True)
class _Output:
    """``held`` is text that waits for the next token; ``closed`` says that closing was forced."""

    tokens: tuple[int, ...] = ()
    text: str = ""
    held: str = ""
    closed: bool = False
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    before: _Output
    after: _Output


class FakeSession:
    """One request's output. After ``thinking_budget`` tokens it forces CLOSE_TOKENS once. ``cuts``:
    what a round produced behind them is dropped; else a session that said how much room there is
    takes what it gets."""

    cuts = False

    def __init__(
        self, options: GenerationOptions, grammar: FakeGrammar | None, faults: FaultPlan
    ) -> None:
        self._options = options
        self._grammar = grammar
        self._faults = faults
        self._output = _Output()
        self.committed_spans = 0

    @property
    def stop_token_ids(self) -> frozenset[int]:
        own = frozenset() if self._options.ignore_eos else frozenset({STOP_TOKEN})
        return own | frozenset(self._options.stop_token_ids)

    @property
    def thinking_room(self) -> int | None:
        budget = self._options.thinking_budget
        if budget is None or self._output.closed:
            return None
        return max(0, budget - len(self._output.tokens))

    def masks(self) -> FakeSession | None:
        return self if self._grammar is not None else None

    def fill(self, drafts: Sequence[int], out: Any) -> tuple[ColumnState, ...]:
        assert self._grammar is not None
        out[:] = 0xFFFFFFFF
        dead_after, done = self._grammar.dead_after, len(self._output.tokens)
        if dead_after is None:
            return (ColumnState.READY,) * (len(drafts) + 1)
        alive = max(0, min(len(drafts) + 1, dead_after - done))
        rest = len(drafts) + 1 - alive
        dead = (ColumnState.DEAD_END, *[ColumnState.UNREACHABLE] * (rest - 1)) if rest else ()
        return (ColumnState.READY,) * alive + dead

    def preview(self, span: OutputSpan) -> OutputPreview:
        self._faults.check("preview")
        accepted, finish, match = self._end(span)
        tokens = span.token_ids[:accepted]
        text, held = _show(self._output.held, tokens, final=finish is not None)
        after = replace(
            self._output,
            tokens=self._output.tokens + tokens,
            text=self._output.text + text,
            held=held,
            closed=self._output.closed or self._must_close(len(tokens)),
            finish=finish,
        )
        delta = Delta(
            channel=Channel.CONTENT,
            text=text,
            token_ids=tokens,
            logprobs=span.logprobs[:accepted],
        )
        forced = CLOSE_TOKENS if finish is None and self._must_close(len(tokens)) else ()
        return OutputPreview(
            accepted=accepted,
            deltas=(delta,) if tokens or text else (),
            finish=finish,
            stop_match=match,
            boundaries=(accepted,) if accepted else (),
            forced=forced,
            state=_Change(self._output, after),
        )

    def commit(self, preview: OutputPreview) -> None:
        self._faults.check("output_commit")
        preview.consume()
        change = preview.state
        if not isinstance(change, _Change) or change.before is not self._output:
            raise EngineFailure("a preview of another output was committed")
        self._output = change.after
        self.committed_spans += 1

    def summary(self) -> OutputSummary:
        return OutputSummary(
            text=self._output.text, reasoning="", tool_calls=(), reasoning_tokens=0
        )

    def _end(self, span: OutputSpan) -> tuple[int, FinishReason | None, str | int | None]:
        text = self._output.text + self._output.held
        for index, token in enumerate(span.token_ids):
            if token in self.stop_token_ids:
                return index + 1, FinishReason.STOP_TOKEN, token
            text += text_of([token])
            for stop in self._options.stop:
                if text.endswith(stop):
                    return index + 1, FinishReason.STOP_STRING, stop
            if self.cuts and index + 1 < len(span.token_ids) and self._must_close(index + 1):
                return index + 1, None, None
        return len(span.token_ids), span.limit, None

    def _must_close(self, new: int) -> bool:
        budget = self._options.thinking_budget
        if budget is None or self._output.closed:
            return False
        return len(self._output.tokens) + new >= budget


def _show(held: str, tokens: Sequence[int], *, final: bool) -> tuple[str, str]:
    """The text that may be shown now and what stays back."""
    shown = ""
    for token in tokens:
        held += text_of([token])
        if token % HELD_BACK_EVERY:
            shown, held = shown + held, ""
    return (shown + held, "") if final else (shown, held)


def _restore_points(prompt: PromptInput, length: int) -> tuple[RestorePoint, ...]:
    given = prompt.chat.template_kwargs.get("points")
    if given is None:
        return (RestorePoint(length - 1, RestoreKind.USER_MESSAGE),) if length > 6 else ()
    points = {frontier: RestoreKind(kind) for frontier, kind in given if 0 < frontier < length}
    return tuple(RestorePoint(frontier, points[frontier]) for frontier in sorted(points))


class FakeFrontend:
    """Prompts are token ids, or text of which each character is a token. ``template_kwargs`` may
    name a ``template`` and give ``points``, pairs of a frontier and the value of its kind.

    A ``response_format`` of kind ``grammar`` has the source ``free``, ``dead:N`` or ``invalid``;
    ``compiling`` blocks compiles while it is cleared; ``compiles`` counts them by source.
    """

    def __init__(self, max_context: int, vocab: int = 64, faults: FaultPlan | None = None) -> None:
        self._max_context = max_context
        self._vocab = vocab
        self.faults = faults or FaultPlan()
        self.compiling = threading.Event()
        self.compiling.set()
        self.compiles: list[str] = []
        self.compiling_now = 0
        self.most_compiling = 0
        self._lock = threading.Lock()

    @property
    def default_sampling(self) -> SamplingParams:
        return SamplingParams(temperature=0.7)

    @property
    def vocab_size(self) -> int:
        return self._vocab

    def render(self, prompt: PromptInput) -> str:
        return prompt.text or text_of(list(prompt.token_ids or ()))

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        import numpy as np

        self.faults.check("prepare")
        ids = prompt.token_ids if prompt.token_ids is not None else self.tokenize(prompt.text or "")
        if not ids:
            raise InvalidPrompt("the prompt is empty", param="messages")
        if len(ids) > self._max_context:
            raise ContextLengthExceeded(len(ids), self._max_context)
        array = np.asarray(ids, dtype=np.int32)
        constrained = prompt.response_format.kind == "grammar"
        source = str(prompt.response_format.value)
        return PreparedPrompt(
            token_ids=array,
            positions=None,
            rope_delta=0,
            media=(),
            identity=PromptIdentity(
                hashlib.sha256(array.tobytes()).digest(),
                (),
                str(prompt.chat.template_kwargs.get("template", "fake")),
                prompt.cache.salt,
            ),
            restore_points=_restore_points(prompt, len(ids)),
            starts_in=Channel.CONTENT,
            grammar=GrammarSource("grammar", source, "", source.encode()) if constrained else None,
            request=prompt,
        )

    def grammar_loader(self) -> None:
        """Nothing to set up."""

    def close(self) -> None:
        """Nothing to end."""

    def compile(self, source: GrammarSource) -> CompiledGrammar:
        with self._lock:
            self.compiles.append(source.text)
            self.compiling_now += 1
            self.most_compiling = max(self.most_compiling, self.compiling_now)
        self.compiling.wait()
        with self._lock:
            self.compiling_now -= 1
        if source.text == "invalid":
            raise InvalidSchema("the grammar is not one", pointer="/value")
        dead = source.text.removeprefix("dead:")
        return FakeGrammar(int(dead) if dead != source.text else None)

    def open_output(
        self,
        prepared: PreparedPrompt,
        options: GenerationOptions,
        compiled: CompiledGrammar | None,
    ) -> FakeSession:
        self.faults.check("open_output")
        assert compiled is None or isinstance(compiled, FakeGrammar)
        return FakeSession(options, compiled, self.faults)

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        return [3 + (ord(character) - 97) % (self._vocab - 3) for character in text]

    def detokenize(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        return text_of(token_ids)

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        return [text_of([token]).encode() for token in token_ids]

    def describe(self) -> Mapping[str, Any]:
        return {"vocabulary": self._vocab, "stop": STOP_TOKEN}
