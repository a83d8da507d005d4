"""What is wrong with a call itself, and what is made of it, before anything is asked of the
engine."""

from __future__ import annotations

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.errors import InvalidRequest, Unsupported
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.engine.instruction import with_schema_instruction


def check_request(prompt: object, options: object) -> None:
    """Raises InvalidRequest for arguments of ``submit`` that are something else."""
    _require(prompt, (PromptInput, PreparedPrompt), "prompt", "PromptInput(text=...)")
    _require(options, (GenerationOptions,), "options", "GenerationOptions(...)")


def adapted(prompt: PromptInput, options: EngineOptions) -> PromptInput:
    """``prompt`` as an engine of ``options`` reads it."""
    return with_schema_instruction(prompt) if options.schema_instruction else prompt


def no_generation() -> Unsupported:
    """An engine of the other purpose was asked for text."""
    return Unsupported(
        "this engine was opened for causal scoring and does not generate",
        hint="open one with purpose GENERATION",
    )


def _require(value: object, types: tuple[type, ...], name: str, mend: str) -> None:
    if not isinstance(value, types):
        raise InvalidRequest(f"{name} is a {type(value).__name__}", param=name, hint=f"give {mend}")
