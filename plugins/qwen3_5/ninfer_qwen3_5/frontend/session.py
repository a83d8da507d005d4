"""The output of one request: preview and commit over detokeniser, channels, stops and budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import Channel, Delta, FinishReason
from ninfer_core.contract.frontend import MaskProvider, OutputPreview, OutputSpan, OutputSummary
from ninfer_core.contract.grammar import Matcher
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_qwen3_5.frontend.budget import ThinkingBudget
from ninfer_qwen3_5.frontend.channels import ChannelParser, ChannelRules, Mark
from ninfer_qwen3_5.frontend.deltas import DeltaBuilder
from ninfer_qwen3_5.frontend.detokenizer import decode_rest, decode_step
from ninfer_qwen3_5.frontend.stretch import Stretch
from ninfer_qwen3_5.frontend.tokenizer import TextTokenizer
from ninfer_qwen3_5.frontend.transcript import Transcript

_OPENING = (Mark.THINK_OPEN, Mark.CALL_OPEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """What does not change during one output.

    ``marks`` gives meaning to token ids; none do in raw output. ``skipped`` are ids without text.
    ``eos`` (empty under ``ignore_eos``) and ``stop_ids`` end the output from token number
    ``min_tokens`` + 1 on, a stop string that is completed at ``min_tokens`` or later does.
    """

    tokenizer: TextTokenizer
    marks: Mapping[int, Mark]
    skipped: frozenset[int]
    eos: frozenset[int]
    stop_ids: frozenset[int]
    min_tokens: int
    channels: ChannelRules
    budget: ThinkingBudget


@dataclass(slots=True)
class _State:
    """The committed position, or that of a preview: a copy costs the same at any length.

    ``pending`` are bytes of a character that is not whole; ``control`` what is left of a closing
    that has begun.
    """

    channels: ChannelParser
    pending: bytes = b""
    produced: int = 0
    reasoning_tokens: int = 0
    control: tuple[int, ...] = ()
    finished: bool = False
    matcher: Matcher | None = None

    def fork(self) -> _State:
        return replace(self, channels=self.channels.fork())

    @property
    def prose(self) -> Stretch | None:
        """The stretch that takes a token of plain text as things stand; None where more has to be
        looked at than the token."""
        if self.control or self.matcher is not None or self.finished:
            return None
        return self.channels.prose


class _Prose(NamedTuple):
    """A token that only adds ``text`` to the open ``stretch``, and the bytes left over."""

    stretch: Stretch
    text: str
    shown: str
    pending: bytes


class _Read(NamedTuple):
    """A span that was read into a copy of the state."""

    state: _State
    warnings: list[str]


class Session:
    """See the contract's ``OutputSession``. Touched by one thread."""

    def __init__(self, rules: SessionRules, starts_in: Channel, matcher: Matcher | None) -> None:
        self._rules = rules
        self._state = _State(ChannelParser(rules.channels, starts_in), matcher=matcher)
        self._open = self._state.prose
        self._latest: tuple[OutputPreview, _Prose | _Read] | None = None
        self._transcript = Transcript()
        self._meaningful = rules.skipped.union(rules.marks, rules.eos, rules.stop_ids)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self._rules.eos | self._rules.stop_ids

    @property
    def thinking_room(self) -> int | None:
        """Tokens that may be produced before the budget closes the open thought.

        None if nothing will be forced as things stand. A unit that produces more overshoots.
        """
        if self._state.channels.channel is not Channel.REASONING:
            return None
        return self._rules.budget.room(self._state.reasoning_tokens)

    def masks(self) -> MaskProvider | None:
        return self._state.matcher

    def preview(self, span: OutputSpan) -> OutputPreview:
        """Raises EngineFailure after the committed end of the output."""
        if self._state.finished:
            raise EngineFailure("output was previewed after its end")
        prose = self._prose(span)
        if prose is not None:
            delta = Delta(
                channel=prose.stretch.channel,
                text=prose.shown,
                token_ids=span.token_ids,
                logprobs=span.logprobs,
            )
            preview = OutputPreview(accepted=1, deltas=(delta,))
            self._latest = (preview, prose)
            return preview
        reader = _SpanReader(self._rules, self._state.fork())
        accepted = reader.read(span)
        preview = OutputPreview(
            accepted=accepted,
            deltas=reader.out.deltas(),
            finish=reader.finish,
            stop_match=reader.stop_match,
            boundaries=tuple(sorted(set(reader.boundaries))),
            forced=reader.forced(),
        )
        self._latest = (preview, _Read(reader.state, reader.out.warnings))
        return preview

    def commit(self, preview: OutputPreview) -> None:
        """Raises EngineFailure for any preview but the latest of this session."""
        if self._latest is None or self._latest[0] is not preview:
            raise EngineFailure("a preview was committed that is not the latest one")
        preview.consume()
        _, step = self._latest
        self._latest = None
        if isinstance(step, _Prose):
            self._commit_prose(step)
        else:
            self._state = step.state
            self._open = step.state.prose
            self._transcript.add(preview.deltas, step.warnings)

    def _commit_prose(self, prose: _Prose) -> None:
        """The stretch stays open."""
        state, channel = self._state, prose.stretch.channel
        prose.stretch.add_prose(prose.text)
        state.pending = prose.pending
        state.produced += 1
        state.reasoning_tokens += channel is Channel.REASONING
        self._transcript.add_text(channel, prose.shown)

    def summary(self) -> OutputSummary:
        state = self._state
        return self._transcript.summary(state.reasoning_tokens, state.channels.whole_calls)

    def _prose(self, span: OutputSpan) -> _Prose | None:
        """What nearly every span is, read without a copy of the state: one token without a meaning
        of its own, where nothing waits for what may follow. None for any other span."""
        stretch, tokens = self._open, span.token_ids
        if stretch is None or len(tokens) != 1 or span.control or span.limit is not None:
            return None
        token, state, rules = tokens[0], self._state, self._rules
        if token in self._meaningful:
            return None
        thinking = stretch.channel is Channel.REASONING
        if thinking and rules.budget.spent(state.reasoning_tokens + 1):
            return None
        text, pending = None if state.pending else rules.tokenizer.text_of(token), b""
        if text is None:
            text, pending = decode_step(state.pending, rules.tokenizer.bytes_of(token))
        shown = stretch.prose(text)
        return None if shown is None else _Prose(stretch, text, shown, pending)


class _SpanReader:
    """Reads one span into a forked state."""

    def __init__(self, rules: SessionRules, state: _State) -> None:
        self._rules = rules
        self.state = state
        self.out = DeltaBuilder()
        self.boundaries: list[int] = []
        self.finish: FinishReason | None = None
        self.stop_match: str | int | None = None

    def read(self, span: OutputSpan) -> int:
        """Returns how many tokens count."""
        self._expect(span)
        accepted = 0
        for token in span.token_ids:
            row = span.logprobs[accepted] if span.logprobs else None
            accepted += 1
            self._token(token, row, span.control, accepted)
            if self.finish is not None:
                break
        self._advance_matcher(span.token_ids[:accepted])
        self._settle(span.limit)
        return accepted

    def forced(self) -> tuple[int, ...]:
        """The tokens that must come next: the closing of a thought whose budget is spent."""
        state, budget = self.state, self._rules.budget
        if state.finished:
            return ()
        if state.control:
            return state.control
        open_thought = state.channels.channel is Channel.REASONING and not state.channels.undecided
        return budget.closing if open_thought and budget.spent(state.reasoning_tokens) else ()

    def _expect(self, span: OutputSpan) -> None:
        """Note what of the closing remains after a control span."""
        expected = self.state.control or self._rules.budget.closing
        whole = span.control and expected[: len(span.token_ids)] == span.token_ids
        self.state.control = expected[len(span.token_ids) :] if whole else ()

    def _token(self, token: int, row: TokenLogprobs | None, control: bool, number: int) -> None:
        state, channels = self.state, self.state.channels
        state.produced += 1
        channel, calls = channels.channel, channels.whole_calls
        if not control and self._ends(token):
            self.finish = FinishReason.STOP_TOKEN
            self.stop_match = token if token in self._rules.stop_ids else None
            self.boundaries += [number - 1, number] if number > 1 else [number]
        else:
            self._interpret(token, not control and state.produced >= self._rules.min_tokens)
            if self._rules.marks.get(token) in _OPENING:
                channel = channels.channel
            if self._rules.marks.get(token) is Mark.THINK_CLOSE or channels.whole_calls > calls:
                self.boundaries.append(number)
        channel = Channel.REASONING if control else channel
        state.reasoning_tokens += channel is Channel.REASONING
        self.out.token(channel, token, row)

    def _ends(self, token: int) -> bool:
        rules = self._rules
        stops = token in rules.eos or token in rules.stop_ids
        return stops and self.state.produced > rules.min_tokens

    def _interpret(self, token: int, armed: bool) -> None:
        state, mark = self.state, self._rules.marks.get(token)
        if mark is not None:
            stop = self._text(decode_rest(state.pending), armed)
            state.pending = b""
            stop = stop or state.channels.mark(mark, self.out, armed)
        elif token in self._rules.skipped:
            return
        else:
            text, state.pending = decode_step(state.pending, self._rules.tokenizer.bytes_of(token))
            stop = self._text(text, armed)
        if stop is not None:
            self.finish, self.stop_match, state.pending = FinishReason.STOP_STRING, stop, b""
        elif self._enough_calls():
            self.finish = FinishReason.TOOL_CALLS

    def _text(self, text: str, armed: bool) -> str | None:
        return self.state.channels.text(text, self.out, armed) if text else None

    def _enough_calls(self) -> bool:
        tools = self._rules.channels.tools
        return tools is not None and not tools.parallel and self.state.channels.whole_calls > 0

    def _advance_matcher(self, tokens: tuple[int, ...]) -> None:
        if self.state.matcher is not None and tokens:
            self.state.matcher = self.state.matcher.fork()
            if self.state.matcher.accept(tokens) < len(tokens):
                raise EngineFailure("a token was produced that its row's constraint forbids")

    def _settle(self, limit: FinishReason | None) -> None:
        """End the output, or let a thought whose budget is spent become the call within it."""
        self.finish = self.finish or limit
        if self.finish is not None:
            self._end(self.finish)
        elif self._rules.budget.spent(self.state.reasoning_tokens):
            self.state.channels.adopt_thought_call(self.out)

    def _end(self, finish: FinishReason) -> None:
        """A character that is not whole is malformed if the model ended there, else only cut."""
        state = self.state
        if finish.natural:
            self._text(decode_rest(state.pending), armed=False)
        state.pending = b""
        state.channels.finish(self.out, finish.natural)
        state.finished = True
        if finish.natural and state.channels.whole_calls:
            self.finish = FinishReason.TOOL_CALLS
