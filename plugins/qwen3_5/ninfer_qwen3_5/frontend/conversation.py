"""One conversation and the texts that its template makes of it and of its beginnings."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_core.contract.errors import InvalidPrompt
from ninfer_core.contract.requests import PromptInput
from ninfer_qwen3_5.frontend.chat_options import template_variables
from ninfer_qwen3_5.frontend.messages import (
    Message,
    leading_systems,
    merge_leading_systems,
    plain,
    read_messages,
)
from ninfer_qwen3_5.frontend.template import ChatTemplate

PROBE: Message = {"role": "user", "content": "\ue0c2probe\ue0c3"}


class Conversation:
    """The checked messages, tools and template variables of one prompt.

    System messages: those at the beginning (``developer`` included) are rendered as one; a later
    one stays in place where the template allows that and is rendered as a user message elsewhere.
    """

    def __init__(self, template: ChatTemplate, prompt: PromptInput) -> None:
        self._template = template
        self.messages = read_messages(prompt.messages or ())
        self.tools = [plain(tool, f"tools[{i}]") for i, tool in enumerate(prompt.tools)]
        readable = template.variables[template.name_for(self.tools)]
        self._variables = template_variables(prompt.chat, readable)
        self._continued = self._continued_field() if prompt.chat.continue_final else None

    @property
    def leading_systems(self) -> int:
        return leading_systems(self.messages)

    @property
    def answered(self) -> list[Message]:
        """The messages before the response that is asked for."""
        return self.messages[:-1] if self._continued else self.messages

    def text(self) -> str:
        """The whole prompt, with the assistant's turn opened or its last message left open."""
        messages = merge_leading_systems(self.messages)
        if self._continued:
            return self._template.render_open(
                messages, self.tools, self._variables, self._continued
            )
        return self._template.render(messages, self.tools, self._variables, generate=True)

    def begun(self, text: str) -> str:
        """What ``text``, the whole prompt, holds already of the content that is asked for."""
        if self._continued != "content":
            return ""
        content = self.messages[-1].get("content") or ""
        if not isinstance(content, str):
            content = "".join(part.get("text", "") for part in content)
        kept = (content, content.rstrip(), content.lstrip(), content.strip())
        return next((found for found in kept if text.endswith(found)), "")

    def closed(self, messages: Sequence[Message]) -> str | None:
        """``messages`` with every turn closed, or None where the template refuses them."""
        try:
            return self._template.render(
                merge_leading_systems(messages), self.tools, self._variables, generate=False
            )
        except InvalidPrompt:
            return None

    def _continued_field(self) -> str:
        last = self.messages[-1]
        if last["role"] != "assistant" or last.get("tool_calls"):
            raise InvalidPrompt(
                "chat.continue_final needs an assistant message without tool calls at the end",
                param="chat.continue_final",
                hint="end messages with one, or leave continue_final out",
            )
        thought_only = bool(last.get("reasoning_content")) and not last.get("content")
        return "reasoning_content" if thought_only else "content"
