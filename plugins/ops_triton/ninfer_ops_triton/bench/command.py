"""``ninfer bench``: how fast a model runs here, and how far that is from the floor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ninfer_core.console import (
    ENGINE_FLAGS,
    ActivationsOption,
    DebugOption,
    DeviceOption,
    DraftTokensOption,
    Interrupt,
    KvDtypeOption,
    PrefillChunkOption,
    SpecOption,
    check_draft_tokens,
    leave,
    reported,
    with_groups,
)
from ninfer_core.contract.engine import MAX_CONCURRENCY
from ninfer_core.errors import UsageError
from ninfer_core.plugins import PluginHost
from ninfer_ops_triton.bench.chosen import ModelGroup, artifact_for
from ninfer_ops_triton.bench.peer import NAMES
from ninfer_ops_triton.bench.session import Session, Setting

_FLAGS = ENGINE_FLAGS | {
    "max_concurrency": "--batch",
    "max_context": "--prompt and --rounds",
}
"""What the contract calls these options' values."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGroup:
    """What is asked of it."""

    batch: Annotated[
        str, typer.Option(metavar="B,B,...", help="Requests at once, one run for each number.")
    ] = "1"
    prompt: Annotated[
        str, typer.Option(metavar="N,N,...", help="Tokens of each prompt, runs for each number.")
    ] = "512"
    new: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of each answer; else as --rounds needs."),
    ] = None
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rounds of all requests to measure.")
    ] = 256
    device: DeviceOption = "auto"
    kv_dtype: KvDtypeOption = None
    prefill_chunk: PrefillChunkOption = 1024
    activations: ActivationsOption = "auto"
    spec: SpecOption = None
    draft_tokens: DraftTokensOption = None
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also measure transformers; may be repeated."),
    ] = None

    def to_setting(self) -> Setting:
        """Raises UsageError."""
        peers = tuple(self.peer or ())
        for name in peers:
            if name not in NAMES:
                raise UsageError(f"--peer {name} is unknown", hint=f"known: {', '.join(NAMES)}")
        return Setting(
            batches=batches(self.batch),
            lengths=lengths(self.prompt),
            new=self.new,
            rounds=self.rounds,
            device=self.device,
            kv_format=self.kv_dtype,
            prefill_chunk=self.prefill_chunk,
            activations=self.activations,
            draft=self.spec,
            draft_tokens=self.draft_tokens or 0,
            peers=peers,
        )


def batches(text: str) -> tuple[int, ...]:
    """``1,2,8`` as numbers, each once, in order. Raises UsageError."""
    numbers = _numbers(text)
    if not numbers or not all(1 <= number <= MAX_CONCURRENCY for number in numbers):
        raise UsageError(
            f"--batch is {text!r}", hint=f"give numbers from 1 to {MAX_CONCURRENCY}, such as 1,2,4"
        )
    return numbers


def lengths(text: str) -> tuple[int, ...]:
    """As :func:`batches`, of any numbers from 1 on. Raises UsageError."""
    numbers = _numbers(text)
    if not numbers or min(numbers) < 1:
        raise UsageError(f"--prompt is {text!r}", hint="give numbers from 1 on, such as 512,8192")
    return numbers


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        return ()


class BenchCommand(TyperCommand):
    """``bench chat …`` is a command of its own; anything else is measured here."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *rest: Any,
        **extra: Any,
    ) -> Any:
        if not args or args[0] != "chat":
            return super().main(args, prog_name, *rest, **extra)
        from ninfer_ops_triton.bench.chat_command import app as chat

        command = typer.main.get_command(chat)
        return command.main(args[1:], f"{prog_name} chat", *rest, **extra)


@app.command(
    cls=BenchCommand,
    epilog="`bench chat` measures conversations and the context cache: `bench chat --help`.",
)
@with_groups
def bench(
    ctx: typer.Context,
    chosen: ModelGroup,
    load: LoadGroup,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: DebugOption = False,
) -> None:
    """Measure prompts and answers through the engine: times, rates, host time, share of roofline.

    For each length of prompts and each number of requests, all prompts are submitted at once and
    answered greedily. Prompts are random tokens and are run, never filled in.
    """
    with reported(debug=debug, as_json=as_json, flags=_FLAGS):
        setting, model = load.to_setting(), chosen.name()
        check_draft_tokens(load.draft_tokens, load.spec, ctx.obj)
        with Interrupt() as interrupt:
            report = _measured(ctx.obj, model, setting, interrupt)
        if as_json:
            typer.echo(json.dumps(report))
        else:
            from ninfer_ops_triton.bench.table import print_report

            print_report(report)
        if interrupt.requested:
            leave()


def _measured(
    host: PluginHost, model: str | None, setting: Setting, interrupt: Interrupt
) -> dict[str, Any]:
    artifact = artifact_for(host, model, interrupt)
    return Session(artifact, setting, host, interrupt).measure()
