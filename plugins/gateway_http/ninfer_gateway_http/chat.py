"""``POST /v1/chat/completions``."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import PromptInput
from ninfer_gateway_http.bodies import BodyRoute, apart
from ninfer_gateway_http.documents import ChatCompletion, events_or
from ninfer_gateway_http.errors import spelled
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.nested import check_nested
from ninfer_gateway_http.openai_stream import reply
from ninfer_gateway_http.replies import ChatWriter
from ninfer_gateway_http.schema import ChatRequest, check_chat, check_effects
from ninfer_gateway_http.structured import form_names
from ninfer_gateway_http.thinking import Thinking
from ninfer_gateway_http.translate import chat_options, chat_prompt, chat_thinking, parts_of

router = APIRouter(route_class=BodyRoute, tags=["openai"])


@router.post("/v1/chat/completions", response_model=None, responses=events_or(ChatCompletion))
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, as a stream of events when ``stream`` is true."""
    gateway: Gateway = request.app.state.gateway
    gateway.check_model(body.model)
    warnings = check_chat(body, strict=gateway.settings.strict)
    thinking = chat_thinking(body)
    options = chat_options(body, thinking, gateway.model, gateway.settings.default_max_tokens)
    asked, nested = await apart(
        request, partial(_understood, body, thinking, strict=gateway.settings.strict)
    )
    said = (*warnings, *nested)
    prompt: PromptInput | PreparedPrompt = asked
    with spelled(form_names(asked, body.structured_outputs)):
        ids: list[int] | None = None
        if body.return_token_ids:
            prompt = await gateway.prepare(asked, request.receive)
            ids = prompt.token_ids.tolist()
        writer = ChatWriter(
            model=gateway.name,
            token_bytes=gateway.engine.token_bytes,
            logprobs=bool(body.logprobs),
            shown=thinking.shown,
            prompt_ids=ids,
        )
        return await reply(request, body, parts_of(prompt, options, body.n), writer, said)


def _understood(
    body: ChatRequest, thinking: Thinking, *, strict: bool
) -> tuple[PromptInput, tuple[str, ...]]:
    prompt = chat_prompt(body, thinking)
    return prompt, (
        *check_effects(body, thinking, strict=strict),
        *check_nested(body, strict=strict),
    )
