"""The form that an answer must have."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_core.console import SchemaInstructionOption
from ninfer_core.contract.requests import PromptInput, ResponseFormat
from ninfer_core.errors import UsageError
from ninfer_core.inputs.schemas import check_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class FormGroup:
    """What the answer must be; one of these at most."""

    json_object: Annotated[
        bool, typer.Option("--json-object", help="The answer is a JSON object.")
    ] = False
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The answer is JSON under this schema; - is stdin."),
    ] = None
    grammar: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The answer is a text of this GBNF grammar."),
    ] = None
    regex: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="The whole answer matches this expression."),
    ] = None
    choice: Annotated[
        list[str], typer.Option(metavar="TEXT", help="The answer is one of these; repeat it.")
    ] = field(default_factory=list)
    schema_instruction: SchemaInstructionOption = False

    def on(self, prompt: PromptInput) -> PromptInput:
        """``prompt`` with the form that is asked for. Raises UsageError, InvalidSchema."""
        wanted, own = self.wanted(), prompt.response_format
        if wanted.kind != "text" and own.kind != "text":
            raise UsageError(
                "the file of --messages names the form of the answer, and an option another",
                hint="give one of them",
            )
        if self.schema_instruction and wanted.kind == own.kind == "text":
            raise UsageError(
                "--schema-instruction has no form to tell the model",
                hint="give one, such as --json-schema FILE",
            )
        return prompt if wanted.kind == "text" else replace(prompt, response_format=wanted)

    def wanted(self) -> ResponseFormat:
        """Raises UsageError, InvalidSchema."""
        forms: dict[str, Any] = {
            "json_object": True if self.json_object else None,
            "json_schema": self.json_schema,
            "grammar": self.grammar,
            "regex": self.regex,
            "choice": self.choice or None,
        }
        given = [name for name, value in forms.items() if value is not None]
        if len(given) > 1:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{flags} exclude each other", hint="give one of them")
        if self.json_object:
            return ResponseFormat(kind="json_object")
        if self.json_schema is not None:
            return ResponseFormat(kind="json_schema", value=_schema(self.json_schema))
        if self.grammar is not None:
            return ResponseFormat(kind="grammar", value=_text(self.grammar, "--grammar"))
        if self.regex is not None:
            return ResponseFormat(kind="regex", value=self.regex)
        if self.choice:
            return ResponseFormat(kind="choice", value=list(self.choice))
        return ResponseFormat()


def _schema(path: Path) -> Any:
    try:
        schema = json.loads(_text(path, "--json-schema"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--json-schema {path} is not JSON: {error}", hint="mend it") from None
    check_schema(schema, "--json-schema")
    return schema


def _text(path: Path, option: str) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}", hint="check the path") from None
    except UnicodeDecodeError:
        raise UsageError(f"{option} {path} is not UTF-8 text", hint="mend the file") from None
