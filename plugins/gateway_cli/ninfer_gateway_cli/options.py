"""The options of `run` and `chat`, and what they mean in the engine's contract."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_core.contract.engine import EngineOptions, LoadSummary
from ninfer_core.contract.requests import ChatOptions, ConsumerMode, GenerationOptions
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.errors import UsageError
from ninfer_core.plugins import PluginHost


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGroup:
    """How the engine is opened; what is None is left to the model and the planner."""

    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda:N", help="Device to run on.")] = (
        "auto"
    )
    max_context: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of prompt and answer together.")
    ] = None
    kv_capacity: Annotated[
        str, typer.Option(metavar="N|auto", help="Tokens of context memory in all.")
    ] = "auto"
    kv_dtype: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Number format of the context memory.")
    ] = None
    prefill_chunk: Annotated[
        int, typer.Option(min=1, metavar="N", help="Prompt tokens per step.")
    ] = 1024
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Template in place of the model's own.")
    ] = None
    spec: Annotated[
        str | None, typer.Option(metavar="NAME", help="Draft backend for speculative decoding.")
    ] = None
    draft_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Draft tokens per round.")
    ] = None

    def to_options(self, host: PluginHost) -> EngineOptions:
        """For one request at a time. Raises UsageError."""
        if self.draft_tokens is not None and self.spec is None:
            raise UsageError("--draft-tokens needs --spec", hint="name a draft backend")
        return EngineOptions(
            devices=(self.device,),
            plugins=host.selection.requested,
            disabled_plugins=host.selection.blocked,
            max_context=self.max_context,
            prefill_chunk=self.prefill_chunk,
            kv_tokens=self._kv_tokens(),
            kv_format=self.kv_dtype,
            draft=self.spec,
            draft_tokens=self.draft_tokens or 0,
            chat_template=self.chat_template,
            queue_timeout=None,
        )

    def _kv_tokens(self) -> int | None:
        if self.kv_capacity == "auto":
            return None
        if not self.kv_capacity.isdecimal() or int(self.kv_capacity) == 0:
            raise UsageError(
                f"--kv-capacity is {self.kv_capacity!r}", hint="give a number of tokens, or auto"
            )
        return int(self.kv_capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingGroup:
    """How tokens are drawn; what is None is the model's own default."""

    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")] = (
        False
    )
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help="Sampling temperature; 0 is greedy.")
    ] = None
    top_p: Annotated[
        float | None, typer.Option(metavar="X", help="Keep the likeliest tokens of this mass.")
    ] = None
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Keep the K likeliest tokens; 0 keeps all.")
    ] = None
    min_p: Annotated[
        float | None, typer.Option(metavar="X", help="Drop tokens below this share of the best.")
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Push down tokens that were generated.")
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Push down tokens by how often they came.")
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Divide repeated logits by X; 1 is off.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of the draws; random when left out.")
    ] = None

    def to_params(self, defaults: SamplingParams, seed: int) -> SamplingParams:
        """On top of ``defaults``, with ``seed`` when none was given.

        Raises InvalidRequest, UsageError.
        """
        if self.greedy and self.temperature:
            raise UsageError("--greedy and --temperature contradict each other", hint="give one")
        given = {name: getattr(self, name) for name in _SAMPLING}
        chosen: dict[str, Any] = {n: v for n, v in given.items() if v is not None}
        if self.greedy:
            chosen["temperature"] = 0.0
        return replace(defaults, **{"seed": seed, **chosen})


@dataclass(frozen=True, slots=True)
class Draws:
    """The sampling of one command, with a seed that stays the same before and after loading."""

    group: SamplingGroup
    seed: int = field(default_factory=lambda: secrets.randbits(32))

    def checked(self) -> SamplingParams:
        """Refuses wrong values before a model is loaded. Raises InvalidRequest, UsageError."""
        return self.group.to_params(SamplingParams(), self.seed)

    def on(self, model: LoadSummary) -> SamplingParams:
        """On top of the model's own defaults."""
        return self.group.to_params(model.default_sampling, self.seed)


_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGroup:
    """How the answer is thought out and where it ends."""

    max_new: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="At most N tokens; else as many as fit."),
    ] = None
    min_tokens: Annotated[
        int, typer.Option(min=0, metavar="N", help="At least N tokens before the answer may end.")
    ] = 0
    stop: Annotated[
        list[str], typer.Option(metavar="TEXT", help="End before this text; may be repeated.")
    ] = field(default_factory=list)
    stop_token_id: Annotated[
        list[int], typer.Option(metavar="ID", help="End at this token; may be repeated.")
    ] = field(default_factory=list)
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Do not end at the model's own end tokens.")
    ] = False
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="Think before answering.")
    ] = None
    thinking_budget: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="At most N tokens of thinking.")
    ] = None
    reasoning_effort: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Effort, where the model's template has it.")
    ] = None

    def chat_options(self) -> ChatOptions:
        return ChatOptions(thinking=self.thinking, effort=self.reasoning_effort)

    def to_options(
        self, sampling: SamplingParams, logprobs: int | None = None
    ) -> GenerationOptions:
        """Raises InvalidRequest."""
        return GenerationOptions(
            sampling=sampling,
            max_new_tokens=self.max_new,
            min_tokens=self.min_tokens,
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_id),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            thinking_budget=self.thinking_budget,
            consumer=ConsumerMode.STREAMING,
        )
