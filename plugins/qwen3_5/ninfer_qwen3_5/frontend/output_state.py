"""Where an output stands, and how a span of tokens moves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ninfer_core.contract.errors import ConstraintDeadEnd
from ninfer_core.contract.events import Channel, FinishReason
from ninfer_core.contract.frontend import OutputSpan
from ninfer_core.contract.grammar import Matcher
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_qwen3_5.frontend.budget import ThinkingBudget
from ninfer_qwen3_5.frontend.channels import ChannelParser, ChannelRules, Mark
from ninfer_qwen3_5.frontend.deltas import DeltaBuilder
from ninfer_qwen3_5.frontend.detokenizer import decode_rest, decode_step
from ninfer_qwen3_5.frontend.stretch import Stretch
from ninfer_qwen3_5.frontend.tokenizer import TextTokenizer

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
class OutputState:
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

    def fork(self) -> OutputState:
        return replace(self, channels=self.channels.fork())

    @property
    def prose(self) -> Stretch | None:
        """The stretch that takes a token of plain text as things stand; None where more has to be
        looked at than the token."""
        if self.control or self.matcher is not None or self.finished:
            return None
        return self.channels.prose


class SpanReader:
    """Reads one span into a forked state."""

    def __init__(self, rules: SessionRules, state: OutputState) -> None:
        self._rules = rules
        self.state = state
        self.out = DeltaBuilder()
        self.boundaries: list[int] = []
        self.finish: FinishReason | None = None
        self.stop_match: str | int | None = None

    def read(self, span: OutputSpan) -> int:
        """Returns how many tokens count: all up to the end of the output, or to where a thought has
        spent its budget. What the span has behind that, one that was read token by token has not:
        there the closing comes."""
        self._expect(span)
        accepted = 0
        for token in span.token_ids:
            row = span.logprobs[accepted] if span.logprobs else None
            accepted += 1
            self._token(token, row, span.control, accepted)
            if self.finish is not None:
                break
            if accepted < len(span.token_ids) and not span.control and self._must_close():
                break
        self._advance_matcher(span.token_ids[:accepted])
        self._settle(span.limit if accepted == len(span.token_ids) else None)
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

    def _must_close(self) -> bool:
        """Whether the closing must come before any further token."""
        if not self._rules.budget.spent(self.state.reasoning_tokens):
            return False
        self.state.channels.adopt_thought_call(self.out)
        return bool(self.forced())

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
                raise ConstraintDeadEnd("a token was produced that the row's constraint forbids")

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
