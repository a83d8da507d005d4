"""The wanted form of the answer as an instruction to the model.

Enforcing a form is the constraint's work; a model that also reads what is wanted chooses better
among the forms it may take. An option of an engine, off by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ninfer_core.contract.errors import InvalidSchema
from ninfer_core.contract.requests import CacheMarker, PromptInput, ResponseFormat


def with_schema_instruction(prompt: PromptInput) -> PromptInput:
    """Put the response format before the conversation, as the first system message.

    The caller's messages keep their contents, and cache markers keep pointing to them. A prompt
    stays as it is without messages, without a format, or where a call must come in place of an
    answer. Raises InvalidSchema for a format that cannot be written down.
    """
    text = _written(prompt.response_format)
    mode = prompt.tool_choice.mode
    if text is None or prompt.messages is None or mode in ("required", "named"):
        return prompt
    if prompt.tools and mode == "auto":
        text = f"Where you call no tool: {text}"
    message: Mapping[str, Any] = {"role": "system", "content": text}
    markers = tuple(_moved(marker) for marker in prompt.cache.markers)
    return replace(
        prompt,
        messages=[message, *prompt.messages],
        cache=replace(prompt.cache, markers=markers),
    )


def _moved(marker: CacheMarker) -> CacheMarker:
    return replace(marker, message=marker.message + 1)


def _written(wanted: ResponseFormat) -> str | None:
    try:
        return _instruction(wanted)
    except (RecursionError, TypeError, ValueError) as error:
        deep = isinstance(error, RecursionError)
        why = "is nested too deeply" if deep else f"cannot be written down: {error}"
        raise InvalidSchema(f"response_format {why}", param="response_format") from None


def _instruction(wanted: ResponseFormat) -> str | None:
    match wanted.kind:
        case "text":
            return None
        case "json_object":
            return "Answer with one JSON object and nothing else."
        case "json_schema":
            schema = json.dumps(wanted.value, ensure_ascii=False)
            named = f" named {wanted.name}" if wanted.name else ""
            return f"Answer with JSON alone, valid under this JSON schema{named}:\n{schema}"
        case "choice":
            choices = ", ".join(json.dumps(str(c), ensure_ascii=False) for c in wanted.value)
            return f"Answer with exactly one of these texts and nothing else: {choices}"
        case "regex":
            return f"Answer with text that this regular expression matches whole:\n{wanted.value}"
        case "grammar":
            return f"Answer with text that this grammar derives:\n{wanted.value}"
