"""Texts that nothing can be done with, refused by the place where they stand."""

from __future__ import annotations

import json
from typing import Any

from ninfer_core.contract.errors import InvalidPrompt, InvalidRequest
from ninfer_core.contract.requests import PromptInput


def refuse_halves(value: Any, path: str) -> None:
    """JSON can spell half of a surrogate pair, which no text holds. Raises InvalidRequest for one
    anywhere in ``value``; what is nested too deeply to look at is refused elsewhere."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{path} holds half of a surrogate pair", param=path, hint="send whole characters"
        ) from None
    except RecursionError:
        return


def check_continued(prompt: PromptInput) -> PromptInput:
    """``prompt``, whose last message can be gone on from if that is asked for: templates take white
    space off its end. Raises InvalidPrompt."""
    messages = prompt.messages or ()
    if not (prompt.chat.continue_final and messages and messages[-1]["role"] == "assistant"):
        return prompt
    content = messages[-1]["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    if text != text.rstrip():
        path = f"messages[{len(messages) - 1}].content"
        raise InvalidPrompt(
            f"{path} ends in white space, which an answer cannot go on from",
            param=path,
            hint="take it off",
        )
    return prompt
