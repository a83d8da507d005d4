"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import PromptInput
from ninfer_core.inputs import parse_prompt
from ninfer_gateway_http.bodies import BodyRoute, Items, apart
from ninfer_gateway_http.documents import DetokenizeReply, TokenizeReply
from ninfer_gateway_http.extras import check_extras
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.nested import check_nested
from ninfer_gateway_http.sampling import token_ids
from ninfer_gateway_http.schema import BODY
from ninfer_gateway_http.streams import warning_header
from ninfer_gateway_http.texts import check_continued
from ninfer_gateway_http.thinking import thinking_of
from ninfer_gateway_http.wire_types import Ids, Message, Tool

router = APIRouter(route_class=BodyRoute, tags=["tokens"])
_STEP: Final = 1 << 12


class TokenizeRequest(BaseModel):
    """Either ``prompt``, a text, or ``messages``, which are rendered as for an answer.

    ``add_special_tokens`` is accepted and changes nothing: the tokenizers of this model family add
    none. ``parse_special`` false takes spellings of special tokens in ``prompt`` as plain text.
    """

    model_config = BODY

    model: str | None = None
    prompt: str | None = None
    messages: Items[Message] | None = None
    tools: Items[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(BaseModel):
    """Token ids, to be joined into text."""

    model_config = BODY

    tokens: Ids
    model: str | None = None


@router.post("/tokenize", response_model=None, responses={200: {"model": TokenizeReply}})
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The token ids of a text or of a rendered conversation."""
    gateway: Gateway = request.app.state.gateway
    gateway.check_model(body.model)
    neutral: dict[str, tuple[Any, ...]] = {
        "add_generation_prompt": (True, False) if body.continue_final_message else (True,)
    }
    warnings = check_extras(body.model_extra, refused=neutral, strict=gateway.settings.strict)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        ids = await apart(request, partial(_plain_ids, body, gateway))
    else:
        # As for an answer: its tools may be the work of seconds.
        prompt = await apart(request, partial(_conversation, body))
        strict = gateway.settings.strict
        warnings += await apart(request, partial(check_nested, body, strict=strict))
        ids = (await gateway.prepare(prompt, request.receive)).token_ids.tolist()
    content = await apart(request, partial(_reply, ids, body, gateway))
    return Response(content, media_type="application/json", headers=warning_header(warnings))


@router.post("/detokenize", response_model=None, responses={200: {"model": DetokenizeReply}})
async def detokenize(body: DetokenizeRequest, request: Request) -> JSONResponse:
    """The text of token ids, special ones spelled out."""
    gateway: Gateway = request.app.state.gateway
    gateway.check_model(body.model)
    warnings = check_extras(body.model_extra, refused={}, strict=gateway.settings.strict)
    text = await apart(request, partial(_text, body, gateway))
    return JSONResponse({"prompt": text}, headers=warning_header(warnings))


def _reply(ids: Sequence[int], body: TokenizeRequest, gateway: Gateway) -> bytes:
    strings = _strings(ids, gateway) if body.return_token_strs else None
    counts = {"count": len(ids), "max_model_len": gateway.model.max_context}
    said = _listed(strings) if strings is not None else "null"
    text = f'{_dumps(counts)[:-1]},"tokens":{_listed(ids)},"token_strs":{said}}}'
    return text.encode()


def _listed(values: Sequence[Any]) -> str:
    """``values`` as JSON, in steps between which other threads run."""
    steps = range(0, len(values), _STEP)
    return f"[{','.join(_dumps(values[at : at + _STEP])[1:-1] for at in steps)}]"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(body: DetokenizeRequest, gateway: Gateway) -> str:
    return gateway.engine.detokenize(token_ids(body.tokens, gateway.model, "tokens"))


def _plain_ids(body: TokenizeRequest, gateway: Gateway) -> list[int]:
    return gateway.engine.tokenize(body.prompt or "", special=body.parse_special is not False)


def _conversation(body: TokenizeRequest) -> PromptInput:
    thinking = thinking_of(
        enable_thinking=body.enable_thinking, template_kwargs=body.chat_template_kwargs
    )
    prompt = parse_prompt(
        {"messages": body.messages, "tools": body.tools},
        chat=thinking.chat(continue_final=bool(body.continue_final_message)),
    )
    return check_continued(prompt)


def _strings(ids: Sequence[int], gateway: Gateway) -> list[str]:
    return [piece.decode(errors="replace") for piece in gateway.engine.token_bytes(ids)]
