"""What the text side takes from an artifact: tokenizer, templates, stop ids, sampling defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.sampling import SamplingParams
from ninfer_qwen3_5.frontend.errors import ResourceError
from ninfer_qwen3_5.frontend.template import DEFAULT_TEMPLATE

if TYPE_CHECKING:
    from ninfer_core.artifact import Artifact

COMPONENT = "text"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"
_SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Resources:
    """The files of one checkpoint, parsed."""

    config: Mapping[str, Any]
    tokenizer: bytes
    tokenizer_config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    templates: Mapping[str, str]

    def declared_eos_ids(self) -> Iterator[int]:
        """End-of-sequence ids of config (nested or flat) and generation config; int or list."""
        nested = self.config.get("text_config") or {}
        for source in (self.config, nested, self.generation_config):
            yield from _id_list(source.get("eos_token_id"))

    def named_tokens(self) -> dict[str, Any]:
        """``eos_token`` and the like, as templates read them; a token may be text or an object."""
        texts = {
            name: _token_text(value)
            for name, value in self.tokenizer_config.items()
            if name.endswith("_token")
        }
        return {name: text for name, text in texts.items() if text is not None}

    def sampling(self) -> SamplingParams:
        """The checkpoint's own defaults; ``do_sample`` false is greedy. Raises ResourceError."""
        config = self.generation_config
        given = {name: config[name] for name in _SAMPLING_FIELDS if config.get(name) is not None}
        if config.get("do_sample") is False:
            given = {"temperature": 0.0}
        try:
            return SamplingParams(**given)
        except (InvalidRequest, TypeError) as error:
            raise ResourceError(
                f"{GENERATION_CONFIG}: {error}", hint=_convert_again(GENERATION_CONFIG)
            ) from error


def read_resources(artifact: Artifact, template_file: str | None = None) -> Resources:
    """Read them from the text component; ``template_file`` replaces the chat template.

    Raises ResourceError naming the resource that is missing or malformed.
    """
    tokenizer = artifact.resource(COMPONENT, TOKENIZER)
    if tokenizer is None:
        raise ResourceError(
            f"the artifact holds no {TOKENIZER}",
            hint="convert the checkpoint again from a directory that has one",
        )
    tokenizer_config = _json_object(artifact, TOKENIZER_CONFIG)
    return Resources(
        config=artifact.component(COMPONENT).config,
        tokenizer=tokenizer,
        tokenizer_config=tokenizer_config,
        generation_config=_json_object(artifact, GENERATION_CONFIG),
        templates=_templates(artifact, tokenizer_config, template_file),
    )


def _json_object(artifact: Artifact, name: str) -> Mapping[str, Any]:
    data = artifact.resource(COMPONENT, name)
    if data is None:
        return {}
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ResourceError(
            f"{name} is not valid JSON: {error}", hint=_convert_again(name)
        ) from error
    if not isinstance(value, dict):
        raise ResourceError(f"{name} must hold a JSON object", hint=_convert_again(name))
    return value


def _templates(
    artifact: Artifact, tokenizer_config: Mapping[str, Any], template_file: str | None
) -> dict[str, str]:
    """By name. A given file wins over ``chat_template.jinja``, and that over the tokenizer's."""
    if template_file is not None:
        return {DEFAULT_TEMPLATE: _read_template(Path(template_file))}
    declared = _declared_templates(tokenizer_config)
    own_file = artifact.resource(COMPONENT, TEMPLATE)
    if own_file is not None:
        text = _template_text(own_file, TEMPLATE)
        if declared.get(DEFAULT_TEMPLATE) != text:  # else the file was made from the list
            return {DEFAULT_TEMPLATE: text}
    return declared


def _declared_templates(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    declared = tokenizer_config.get("chat_template")
    if declared is None:
        return {}
    if isinstance(declared, str):
        return {DEFAULT_TEMPLATE: declared}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in declared}
    except (TypeError, KeyError) as error:
        raise ResourceError(
            f"{TOKENIZER_CONFIG}: chat_template must be text or a list of named templates",
            hint=f"{_convert_again(TOKENIZER_CONFIG)}, or give a template with --chat-template",
        ) from error


def _read_template(path: Path) -> str:
    try:
        return _template_text(path.read_bytes(), str(path))
    except OSError as error:
        raise ResourceError(
            f"chat template {path} cannot be read: {error.strerror}",
            hint="give the path of a Jinja file with --chat-template",
        ) from error


def _template_text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ResourceError(
            f"chat template {name} is not UTF-8 text",
            hint="write it in UTF-8, or give another with --chat-template",
        ) from error


def _id_list(value: Any) -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(entry) is int for entry in ids):
        raise ResourceError(
            f"eos_token_id is {value!r}; it must be a token id or a list of them",
            hint=_convert_again(f"config.json or {GENERATION_CONFIG}"),
        )
    return ids


def _convert_again(name: str) -> str:
    """The mend of a file that the artifact holds as the checkpoint gave it."""
    return f"mend the checkpoint's {name} and convert it again"


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None
