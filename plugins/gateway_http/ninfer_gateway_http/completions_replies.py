"""From the engine's results to text completions: whole ones and chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer_core.contract.events import Delta, GenerationResult
from ninfer_gateway_http.logprobs import (
    LegacyLogprobs,
    TokenBytes,
    join_legacy,
    prompt_logprobs,
)
from ninfer_gateway_http.replies import finish_reason, report, usage_report

JsonDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """One prompt as a reply may show it; ``token_ids`` are known where they are needed."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWriter:
    """Writes everything that is sent back for one completion request.

    ``prompts`` has one entry for each choice, and each prompt ``n`` choices. ``scored`` asks for
    the prompt's log-probabilities in a field of their own.
    """

    model: str
    token_bytes: TokenBytes
    prompts: Sequence[PromptEcho]
    n: int = 1
    echo: bool = False
    logprobs: bool = False
    ids: bool = False
    scored: bool = False
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _open: dict[int, LegacyLogprobs] = field(default_factory=dict)

    @property
    def bare(self) -> bool:
        return not self.logprobs and not self.ids

    def whole(self, results: Sequence[GenerationResult]) -> JsonDict:
        """All completions. Raises Cancelled."""
        choices = [self._choice(index, result) for index, result in enumerate(results)]
        return self._envelope(choices) | {"usage": usage_report(results, self.n)} | report(results)

    def opening(self, index: int) -> JsonDict:
        """The first chunk of a choice: the prompt, where it is wanted, and its token ids."""
        prompt = self.prompts[index]
        chunk = self._chunk(index, prompt.text if self.echo else "")
        if self.ids:
            chunk["choices"][0]["prompt_token_ids"] = prompt.token_ids
        return chunk

    def empty(self, index: int) -> JsonDict:
        return self._chunk(index, "")

    def delta(self, index: int, delta: Delta) -> JsonDict | None:
        """The chunk of one delta; None when it carries nothing that was asked for."""
        rows = delta.logprobs if self.logprobs else ()
        ids = delta.token_ids if self.ids else ()
        if not delta.text and not rows and not ids:
            return None
        chunk = self._chunk(index, delta.text)
        choice = chunk["choices"][0]
        if rows:
            choice["logprobs"] = self._legacy(index).write(rows)
        if ids:
            choice["token_ids"] = list(ids)
        return chunk

    def closing(self, index: int, result: GenerationResult) -> JsonDict:
        """The chunk with the finish reason and the timings. Raises Cancelled."""
        chunk = self._chunk(index, "")
        chunk["choices"][0] |= self._end(result) | self._scores(result)
        return chunk | report([result])

    def last(self) -> JsonDict:
        return self._envelope([])

    def _choice(self, index: int, result: GenerationResult) -> JsonDict:
        prompt = self.prompts[index]
        choice: JsonDict = {
            "index": index,
            "text": prompt.text + result.text if self.echo else result.text,
            "logprobs": self._whole_logprobs(index, result) if self.logprobs else None,
            **self._end(result),
            **self._scores(result),
        }
        if self.ids:
            choice |= {"prompt_token_ids": prompt.token_ids, "token_ids": list(result.token_ids)}
        return choice

    def _whole_logprobs(self, index: int, result: GenerationResult) -> JsonDict:
        rows = LegacyLogprobs(self.token_bytes)
        if not self.echo:
            return rows.write(result.logprobs)
        echoed = rows.write(result.prompt_logprobs, self.prompts[index].token_ids)
        return join_legacy(echoed, rows.write(result.logprobs))

    def _legacy(self, index: int) -> LegacyLogprobs:
        return self._open.setdefault(index, LegacyLogprobs(self.token_bytes))

    def _end(self, result: GenerationResult) -> JsonDict:
        return {"finish_reason": finish_reason(result), "stop_reason": result.stop_match}

    def _scores(self, result: GenerationResult) -> JsonDict:
        if not self.scored:
            return {}
        return {"prompt_logprobs": prompt_logprobs(result.prompt_logprobs, self.token_bytes)}

    def _chunk(self, index: int, text: str) -> JsonDict:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        return self._envelope([choice])

    def _envelope(self, choices: list[JsonDict]) -> JsonDict:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
