"""What `run` answers: a text, a file of messages, or stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ninfer_core.contract.requests import ChatOptions, JsonObject, PromptInput
from ninfer_core.errors import UsageError
from ninfer_core.inputs import parse_messages, parse_tools

STDIN = "-"


def read_prompt(
    *,
    prompt: str | None,
    messages: Path | None,
    stdin: bool,
    system: str | None,
    tools: Path | None,
    chat: ChatOptions,
) -> PromptInput:
    """The prompt from exactly one place. Raises UsageError, InvalidPrompt, InvalidRequest."""
    if (prompt is not None) + (messages is not None) + stdin != 1:
        raise UsageError(
            "give exactly one of --prompt TEXT, --messages FILE, or - for stdin",
            hint="ninfer run demo --prompt 'What is 17 + 25?'",
        )
    if messages is not None:
        turns = _messages_of(_json_of(messages, "--messages"))
    else:
        turns = [{"role": "user", "content": sys.stdin.read() if prompt is None else prompt}]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    return PromptInput(
        messages=parse_messages(turns),
        tools=parse_tools(_json_of(tools, "--tools")) if tools else (),
        chat=chat,
    )


def _messages_of(value: Any) -> list[JsonObject]:
    """The list itself, or the ``messages`` of a saved request body."""
    turns = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(turns, list):
        raise UsageError(
            "--messages holds no list of messages", hint='write [{"role": "user", "content": …}]'
        )
    return list(turns)


def _json_of(path: Path, option: str) -> Any:
    try:
        text = sys.stdin.read() if str(path) == STDIN else path.read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}", hint="check the path") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} {path} is not JSON: {error}", hint="mend the file") from None
