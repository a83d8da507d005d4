"""What `run` answers: a text, a file of messages, or stdin."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ninfer_core.contract.requests import ChatOptions, PromptInput
from ninfer_core.errors import UsageError
from ninfer_core.inputs import parse_prompt, parse_tools

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
    asked = parse_prompt(_document(prompt, messages), chat=chat, field="--messages")
    if tools is not None:
        asked = replace(asked, tools=parse_tools(_json_of(tools, "--tools"), "--tools"))
    if system is not None:
        first = {"role": "system", "content": system}
        asked = replace(asked, messages=[first, *(asked.messages or ())])
    return asked


def _document(prompt: str | None, messages: Path | None) -> Any:
    if messages is not None:
        return _json_of(messages, "--messages")
    text = sys.stdin.read() if prompt is None else prompt
    if not text.strip():
        raise UsageError("the prompt is empty", hint="give some text")
    return [{"role": "user", "content": text}]


def _json_of(path: Path, option: str) -> Any:
    try:
        text = sys.stdin.read() if str(path) == STDIN else path.read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}", hint="check the path") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} {path} is not JSON: {error}", hint="mend the file") from None
