"""From a prompt to the value that execution works with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from ninfer_core.contract.errors import (
    ContextLengthExceeded,
    InvalidPrompt,
    InvalidRequest,
    Unsupported,
)
from ninfer_core.contract.events import Channel
from ninfer_core.contract.frontend import PreparedPrompt, PromptIdentity, RestorePoint
from ninfer_core.contract.grammar import GrammarCompiler
from ninfer_core.contract.requests import CacheMode, ChatOptions, PromptInput
from ninfer_qwen3_5.frontend.constraint import grammar_source
from ninfer_qwen3_5.frontend.conversation import Conversation
from ninfer_qwen3_5.frontend.long_text import encode_limited
from ninfer_qwen3_5.frontend.restore import restore_points
from ninfer_qwen3_5.frontend.template import ChatTemplate
from ninfer_qwen3_5.frontend.tokenizer import Encoded, TextTokenizer
from ninfer_qwen3_5.frontend.vocabulary import Vocabulary


class PromptPreparer:
    """Renders, tokenises and checks prompts. ``template_identity`` names tokenizer and template."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        template_identity: str,
        max_context: int,
        compiler: GrammarCompiler | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._template = template
        self._template_identity = template_identity
        self._max_context = max_context
        self._compiler = compiler

    def render(self, prompt: PromptInput) -> str:
        _check_fields(prompt)
        if prompt.messages is not None:
            return Conversation(self._template, prompt).text()
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode(self._checked_ids(prompt.token_ids))

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        _check_fields(prompt)
        if prompt.messages is not None:
            return self._prepare_messages(prompt)
        if prompt.text is not None:
            ids = self._encode(prompt.text, "text").ids
        else:
            ids = self._checked_ids(prompt.token_ids)
        return self._finished(prompt, ids, Channel.CONTENT, (), "")

    def _prepare_messages(self, prompt: PromptInput) -> PreparedPrompt:
        conversation = Conversation(self._template, prompt)
        text = conversation.text()
        encoded = self._encode(text, "messages")
        points: tuple[RestorePoint, ...] = ()
        if prompt.cache.mode is not CacheMode.DISABLED:
            points = restore_points(conversation, text, encoded.offsets, prompt.cache.markers)
        prefix = conversation.begun(text)
        return self._finished(prompt, encoded.ids, self._starts_in(encoded.ids), points, prefix)

    def _encode(self, text: str, field: str) -> Encoded:
        if not text:
            raise InvalidPrompt(f"the prompt is empty; {field} must not be", param=field)
        refuse_half_characters(text, field)
        limited = encode_limited(self._tokenizer, text, self._max_context)
        if len(limited.encoded.ids) > self._max_context:
            raise ContextLengthExceeded(len(limited.encoded.ids), self._max_context)
        return limited.encoded

    def _checked_ids(self, ids: Sequence[int] | None) -> list[int]:
        if ids is None or not len(ids):
            raise InvalidPrompt("the prompt is empty; token_ids must not be", param="token_ids")
        if len(ids) > self._max_context:
            raise ContextLengthExceeded(len(ids), self._max_context)
        for index, token in enumerate(ids):
            valid = isinstance(token, int | np.integer) and not isinstance(token, bool)
            if not (valid and 0 <= token < self._tokenizer.vocab_size):
                raise InvalidPrompt(
                    f"token_ids[{index}] is {token!r}; ids run from 0 to "
                    f"{self._tokenizer.vocab_size - 1}",
                    param=f"token_ids[{index}]",
                )
        return [int(token) for token in ids]

    def _starts_in(self, ids: Sequence[int]) -> Channel:
        """What the prompt leaves open: the last turn's last thought mark decides."""
        marks = self._vocabulary
        for token in reversed(ids):
            if token == marks.think_open:
                return Channel.REASONING
            if token in (marks.think_close, marks.turn_start):
                break
        return Channel.CONTENT

    def _finished(
        self,
        prompt: PromptInput,
        ids: Sequence[int],
        starts_in: Channel,
        points: tuple[RestorePoint, ...],
        prefix: str,
    ) -> PreparedPrompt:
        token_ids = np.asarray(ids, dtype=np.int32)
        identity = PromptIdentity(
            digest=hashlib.sha256(token_ids.astype("<i4").tobytes()).digest(),
            media_digests=(),
            template=self._template_identity,
            salt=prompt.cache.salt,
        )
        return PreparedPrompt(
            token_ids=token_ids,
            positions=None,
            rope_delta=0,
            media=(),
            identity=identity,
            restore_points=points,
            starts_in=starts_in,
            grammar=grammar_source(prompt, starts_in, self._vocabulary, self._compiler, prefix),
            request=prompt,
        )


def _check_fields(prompt: PromptInput) -> None:
    if prompt.media:
        raise Unsupported(
            f"media[0] is a part of type {prompt.media[0].kind!r}; this model is served with text "
            "only",
            param="media[0]",
            hint="leave it out",
        )
    if prompt.messages is None and (prompt.tools or prompt.chat != ChatOptions()):
        field = "tools" if prompt.tools else "chat"
        raise InvalidRequest(
            f"{field} needs messages, and the prompt has none",
            param=field,
            hint=f"send messages, or leave {field} out",
        )
    _check_choice(prompt)


def _check_choice(prompt: PromptInput) -> None:
    choice = prompt.tool_choice
    if choice.mode in ("required", "named") and not prompt.tools:
        raise InvalidRequest(
            f"tool_choice is {choice.mode} but there are no tools",
            param="tool_choice",
            hint="send tools, or leave tool_choice out",
        )
    names = [(tool.get("function") or tool).get("name") for tool in prompt.tools]
    if not all(isinstance(name, str) and name for name in names):
        place = next(i for i, name in enumerate(names) if not isinstance(name, str) or not name)
        raise InvalidRequest(
            f"tools[{place}] has no function name",
            param=f"tools[{place}]",
            hint="name every function",
        )
    if choice.mode == "named" and choice.name not in names:
        raise InvalidRequest(
            f"tool_choice names {choice.name!r}, which is not among the tools",
            param="tool_choice",
            hint=f"choose from {', '.join(map(str, names))}",
        )


def refuse_half_characters(text: str, field: str) -> None:
    """JSON can spell half of a surrogate pair; no tokenizer can represent it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidPrompt(
            f"{field} holds {text[error.start]!r}, half of a surrogate pair",
            param=field,
            hint="send whole characters",
        ) from None
