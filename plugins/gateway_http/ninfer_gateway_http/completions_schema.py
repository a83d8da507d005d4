"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from ninfer_core.contract.errors import InvalidRequest, Unsupported
from ninfer_gateway_http.bodies import Items
from ninfer_gateway_http.extras import NeutralValues
from ninfer_gateway_http.schema import COMMON_NEUTRAL, GenerationFields, check_fields
from ninfer_gateway_http.wire_types import at_least, between

_WANTED: Final = "it must be a text, a list of texts, of token ids, or of lists of token ids"


def _in_one_word(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """One error in place of one for each type that ``value`` is not of."""
    try:
        return read(value)
    except ValidationError:
        raise PydanticCustomError("prompt", _WANTED) from None


Prompt = str | Items[str] | Items[int] | Items[Items[int]]
DEFAULT_MAX_TOKENS: Final = 16
"""The limit of a completion that names none, as OpenAI has it."""


class CompletionRequest(GenerationFields):
    """A text completion request. A field that is null counts as left out.

    ``prompt`` is a text, a list of texts, the token ids of one prompt, or a list of such lists.
    """

    prompt: Annotated[Prompt, WrapValidator(_in_one_word)]
    echo: bool | None = None
    logprobs: Annotated[int | None, between(0, 20)] = None
    best_of: Annotated[int | None, at_least(1)] = None
    suffix: str | None = None


_NEUTRAL: Final[NeutralValues] = {
    **COMMON_NEUTRAL,
    "add_special_tokens": (True,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
}


def check_completion(request: CompletionRequest, *, strict: bool) -> tuple[str, ...]:
    """Warnings. Raises Unsupported for known fields that ask for more than is served."""
    if request.suffix:
        raise Unsupported("suffix is not supported", param="suffix", hint="leave it out")
    if request.best_of not in (None, 1, request.n):
        raise Unsupported(
            f"best_of is {request.best_of}; only 1, or the value of n, is supported",
            param="best_of",
            hint="leave it out",
        )
    if request.stream and request.echo and request.logprobs is not None:
        raise Unsupported(
            "echo with logprobs is not supported in a stream",
            param="echo",
            hint="leave one of them out, or stream",
        )
    return check_fields(request, _NEUTRAL, strict=strict)


def prompts_of(prompt: Prompt) -> list[str | list[int]]:
    """The single prompts. Raises InvalidRequest without any."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt is empty; give at least one token or text", param="prompt")
    items: list[Any] = [prompt] if isinstance(prompt[0], int) else list(prompt)
    return items
