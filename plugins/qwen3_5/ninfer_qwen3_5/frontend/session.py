"""The output of one request: preview and commit over detokeniser, channels, stops and budget."""

from __future__ import annotations

from typing import NamedTuple

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import Channel, Delta
from ninfer_core.contract.frontend import (
    MaskProvider,
    OutputPreview,
    OutputSpan,
    OutputSummary,
)
from ninfer_core.contract.grammar import Matcher
from ninfer_qwen3_5.frontend.channels import ChannelParser
from ninfer_qwen3_5.frontend.detokenizer import decode_step
from ninfer_qwen3_5.frontend.output_state import OutputState, SessionRules, SpanReader
from ninfer_qwen3_5.frontend.row_masks import RowMasks
from ninfer_qwen3_5.frontend.stretch import Stretch
from ninfer_qwen3_5.frontend.transcript import Transcript


class _Prose(NamedTuple):
    """A token that only adds ``text`` to the open ``stretch``, and the bytes left over."""

    stretch: Stretch
    text: str
    shown: str
    pending: bytes


class _Read(NamedTuple):
    """A span that was read into a copy of the state."""

    state: OutputState
    warnings: list[str]


class Session:
    """See the contract's ``OutputSession``. Touched by one thread."""

    def __init__(self, rules: SessionRules, starts_in: Channel, matcher: Matcher | None) -> None:
        self._rules = rules
        self._state = OutputState(ChannelParser(rules.channels, starts_in), matcher=matcher)
        self._open = self._state.prose
        self._latest: tuple[OutputPreview, _Prose | _Read] | None = None
        self._transcript = Transcript()
        self._masks = None if matcher is None else RowMasks(self._matcher)
        self._meaningful = rules.skipped.union(rules.marks, rules.eos, rules.stop_ids)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self._rules.eos | self._rules.stop_ids

    @property
    def thinking_room(self) -> int | None:
        """Tokens that may be produced before the budget closes the open thought.

        None if nothing will be forced as things stand. What a unit produces beyond is not accepted.
        """
        if self._state.channels.channel is not Channel.REASONING:
            return None
        return self._rules.budget.room(self._state.reasoning_tokens)

    def masks(self) -> MaskProvider | None:
        """The same object throughout: it speaks of the committed output when it is asked."""
        return self._masks

    def _matcher(self) -> Matcher | None:
        return None if self._state.finished else self._state.matcher

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
        reader = SpanReader(self._rules, self._state.fork())
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
