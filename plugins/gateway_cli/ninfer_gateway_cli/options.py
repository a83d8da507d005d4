"""The options of `run` and `chat` about drawing and ending, and what they mean in the contract."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import typer

from ninfer_core.console import ENGINE_FLAGS
from ninfer_core.contract.engine import LoadSummary
from ninfer_core.contract.requests import ChatOptions, ConsumerMode, GenerationOptions
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.errors import UsageError

FLAGS: Final = ENGINE_FLAGS | {
    "chat.effort": "--reasoning-effort",
    "chat.thinking": "--thinking",
    "max_new_tokens": "--max-new",
    "min_tokens": "--min-tokens",
    "response_format": "the form of the answer",
    "stop_token_ids": "--stop-token-id",
    "thinking_budget": "--thinking-budget",
}
"""Fields of the contract whose option has another name."""


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
