"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ninfer_core.contract.errors import ContextLengthExceeded, InvalidRequest
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_gateway_http.bodies import BodyRoute, apart
from ninfer_gateway_http.choices import Part
from ninfer_gateway_http.completions_replies import PromptEcho, TextWriter
from ninfer_gateway_http.completions_schema import (
    DEFAULT_MAX_TOKENS,
    CompletionRequest,
    check_completion,
    prompts_of,
)
from ninfer_gateway_http.documents import TextCompletion, events_or
from ninfer_gateway_http.errors import spelled
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.openai_stream import reply
from ninfer_gateway_http.sampling import alternatives, token_ids, token_limit
from ninfer_gateway_http.translate import cache_of, options_of, parts_of

router = APIRouter(route_class=BodyRoute, tags=["openai"])
MAX_COMPLETIONS: Final = 1024
_OWN_NAMES: Final = {"messages": "prompt", "token_ids": "prompt", "text": "prompt"}


@router.post("/v1/completions", response_model=None, responses=events_or(TextCompletion))
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue texts or token ids as they are, without a chat template.

    Choices come in the order of the prompts, ``n`` for each of them.
    """
    gateway: Gateway = request.app.state.gateway
    gateway.check_model(body.model)
    warnings = check_completion(body, strict=gateway.settings.strict)
    options = _options(body, gateway)
    with spelled(_OWN_NAMES):
        items, n = prompts_of(body.prompt), body.n or 1
        if len(items) * n > MAX_COMPLETIONS:
            raise InvalidRequest(
                f"prompt and n ask for {len(items) * n} choices; at most {MAX_COMPLETIONS}",
                param="prompt",
            )
        prompts = await apart(request, partial(_inputs, items, body, gateway))
        parts, echoes = await _parts(body, prompts, options, request)
        writer = TextWriter(
            model=gateway.name,
            token_bytes=gateway.engine.token_bytes,
            prompts=echoes,
            n=n,
            echo=bool(body.echo),
            logprobs=body.logprobs is not None,
            ids=bool(body.return_token_ids),
            scored=body.prompt_logprobs is not None,
        )
        return await reply(request, body, parts, writer, warnings)


async def _parts(
    body: CompletionRequest,
    prompts: Sequence[PromptInput],
    options: GenerationOptions,
    request: Request,
) -> tuple[list[Part], list[PromptEcho]]:
    """What each choice asks, and its prompt as the reply shows it. Prompts are prepared here only
    when the reply needs their token ids, or the longest of several has to be known."""
    gateway: Gateway = request.app.state.gateway
    need_ids = (
        body.return_token_ids or (body.echo and body.logprobs is not None) or len(prompts) > 1
    )
    parts: list[Part] = []
    echoes: list[PromptEcho] = []
    for prompt in prompts:
        prepared = await gateway.prepare(prompt, request.receive) if need_ids else None
        ids = [] if prepared is None else prepared.token_ids.tolist()
        text = await asyncio.to_thread(_text, prompt, gateway) if body.echo else ""
        chosen = parts_of(prompt if prepared is None else prepared, options, body.n)
        parts += chosen
        echoes += [PromptEcho(text, ids)] * len(chosen)
    return parts, echoes


def _inputs(
    items: Sequence[str | list[int]], body: CompletionRequest, gateway: Gateway
) -> list[PromptInput]:
    return [_input(item, body, gateway) for item in items]


def _input(item: str | list[int], body: CompletionRequest, gateway: Gateway) -> PromptInput:
    if isinstance(item, str):
        return PromptInput(text=item, cache=cache_of(body))
    if len(item) > gateway.model.max_context:
        raise ContextLengthExceeded(len(item), gateway.model.max_context)
    ids = token_ids(item, gateway.model, "prompt")
    return PromptInput(token_ids=ids, cache=cache_of(body))


def _text(prompt: PromptInput, gateway: Gateway) -> str:
    if prompt.text is not None:
        return prompt.text
    return gateway.engine.detokenize(prompt.token_ids or ())


def _options(body: CompletionRequest, gateway: Gateway) -> GenerationOptions:
    options = options_of(body, gateway.model)
    limit = body.max_tokens
    if limit is None:
        limit = gateway.settings.default_max_tokens or DEFAULT_MAX_TOKENS
    top = alternatives(body.logprobs, "logprobs")
    scored = [k for k in (options.prompt_logprobs, top if body.echo else None) if k is not None]
    return replace(
        options,
        max_new_tokens=token_limit(limit, "max_tokens"),
        logprobs=top,
        prompt_logprobs=max(scored) if scored else None,
    )
