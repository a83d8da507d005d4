"""The checkpoint's chat template: which one applies, what it reads, and rendering with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import meta

from ninfer_core.contract.errors import InvalidPrompt
from ninfer_qwen3_5.frontend.errors import ResourceError
from ninfer_qwen3_5.frontend.messages import Message, later_systems_as_user
from ninfer_qwen3_5.frontend.sandbox import BoundedEnvironment, RenderLimits, render_bounded

TOOL_TEMPLATE = "tool_use"
DEFAULT_TEMPLATE = "default"
_CONTINUE = "\ue0c0continue\ue0c1"
_PROBE = "\ue0c2probe\ue0c3"
_ANOTHER = "change the messages, or give another template with --chat-template"


class ChatTemplate:
    """One template, or several by name of which ``tool_use`` serves prompts with tools.

    ``tokens`` are the tokenizer's named tokens (``eos_token`` and the like), which templates may
    read. Thread safe. Raises ResourceError for a template that does not parse.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        tokens: Mapping[str, Any],
        limits: RenderLimits | None = None,
    ) -> None:
        environment = BoundedEnvironment()
        self._templates = {
            name: _compiled(environment, name, source) for name, source in sources.items()
        }
        self._tokens = dict(tokens)
        self._limits = limits or RenderLimits()
        self.variables = {
            name: frozenset(meta.find_undeclared_variables(environment.parse(source)))
            for name, source in sources.items()
        }
        joined = "\0".join(f"{name}\0{sources[name]}" for name in sorted(sources))
        self.digest = hashlib.sha256(joined.encode()).hexdigest()[:16]
        self._systems_anywhere = {name: self._accepts_later_system(name) for name in sources}

    def name_for(self, tools: Sequence[Any]) -> str:
        """Which template renders a prompt. Raises InvalidPrompt when there is none."""
        if tools and TOOL_TEMPLATE in self._templates:
            return TOOL_TEMPLATE
        if DEFAULT_TEMPLATE in self._templates:
            return DEFAULT_TEMPLATE
        known = ", ".join(sorted(self._templates)) or "no template at all"
        raise InvalidPrompt(
            f"the checkpoint has no default chat template, but {known}",
            param="messages",
            hint="give one with --chat-template, or send text instead of messages",
        )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any],
        variables: Mapping[str, Any],
        *,
        generate: bool,
    ) -> str:
        """The conversation as text; ``generate`` opens the assistant's turn at its end.

        A system message after the first message stays in place where the template renders one
        there, and is rendered as a user message at that place where it does not. Raises
        InvalidPrompt with the template's own words.
        """
        name = self.name_for(tools)
        if not self._systems_anywhere[name]:
            messages = later_systems_as_user(messages)
        return self._render(name, messages, tools, variables, generate)

    def render_open(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any],
        variables: Mapping[str, Any],
        field: str,
    ) -> str:
        """The conversation up to the end of the last message's text ``field``, not closed.

        Trailing white space that the template trims from a message stays trimmed.
        """
        *earlier, last = messages
        marked = {**last, field: _marked(last.get(field, ""))}
        text = self.render([*earlier, marked], tools, variables, generate=False)
        place = text.rfind(_CONTINUE)
        if place < 0:
            raise InvalidPrompt(
                f"the chat template does not render {field} of the last message, so it cannot be "
                "continued",
                param="chat.continue_final",
                hint="leave continue_final out, or give another template with --chat-template",
            )
        kept = text[place:].startswith(f"{_CONTINUE} ")
        return text[:place] if kept else text[:place].rstrip()

    def _render(
        self,
        name: str,
        messages: Sequence[Message],
        tools: Sequence[Any],
        variables: Mapping[str, Any],
        generate: bool,
    ) -> str:
        known = {
            "documents": None,
            **self._tokens,
            **variables,
            "messages": list(messages),
            "tools": list(tools) or None,
            "add_generation_prompt": generate,
        }
        try:
            return render_bounded(self._templates[name], known, self._limits)
        except jinja2.TemplateError as error:
            raise InvalidPrompt(
                f"chat template: {error}", param="messages", hint=_ANOTHER
            ) from error
        except Exception as error:
            raise InvalidPrompt(
                f"the chat template failed on these messages: {type(error).__name__}: {error}",
                param="messages",
                hint=_ANOTHER,
            ) from error

    def _accepts_later_system(self, name: str) -> bool:
        """Try it: a template may raise on a system message in mid-conversation, or drop it."""
        probe = [
            {"role": "user", "content": "a"},
            {"role": "system", "content": _PROBE},
            {"role": "user", "content": "b"},
        ]
        try:
            return _PROBE in self._render(name, probe, (), {}, generate=False)
        except InvalidPrompt:
            return False


def _compiled(environment: BoundedEnvironment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ResourceError(
            f"chat template {name!r} does not parse: {error}",
            hint="mend the template, or give another with --chat-template",
        ) from error


def _marked(content: Any) -> Any:
    """``content`` with the mark at its end; the space behind shows whether the end is trimmed."""
    if isinstance(content, str):
        return f"{content}{_CONTINUE} "
    *earlier, last = content or [{"type": "text", "text": ""}]
    return [*earlier, {**last, "text": f"{last['text']}{_CONTINUE} "}]
