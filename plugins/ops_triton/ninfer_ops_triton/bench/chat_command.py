"""``ninfer bench chat``: what the context cache spares conversations of several turns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ninfer_core.console import (
    ENGINE_FLAGS,
    DebugOption,
    DeviceOption,
    Interrupt,
    KvDtypeOption,
    PrefillChunkOption,
    leave,
    reported,
    with_groups,
)
from ninfer_core.console.sizes import byte_size
from ninfer_core.errors import UsageError
from ninfer_core.plugins import PluginHost
from ninfer_ops_triton.bench.chat_session import ChatSession, ChatSetting
from ninfer_ops_triton.bench.chosen import ModelGroup, artifact_for, is_geometry
from ninfer_ops_triton.bench.talks import Sizes

_FLAGS = ENGINE_FLAGS | {
    "max_context": "--system, --user, --new and --turns",
}
"""What the contract calls these options' values."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkGroup:
    """The conversations."""

    turns: Annotated[int, typer.Option(min=1, metavar="T", help="Turns of each conversation.")] = 6
    conversations: Annotated[
        int, typer.Option(min=1, metavar="C", help="Conversations that take turns.")
    ] = 4
    system: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens before the first turn, shared by all.")
    ] = 1024
    user: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of each question.")] = 128
    new: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of each answer.")] = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGroup:
    """Where, and with how much room for what is kept."""

    cache: Annotated[str, typer.Option(metavar="NAME", help="Policy of the context cache.")] = (
        "reuse"
    )
    cache_slots: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="State slots for kept contexts; else four a talk."),
    ] = None
    kv_capacity: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of context memory; else room for all."),
    ] = None
    host_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Host memory for kept contexts, such as 8GiB."),
    ] = None
    device: DeviceOption = "auto"
    kv_dtype: KvDtypeOption = None
    prefill_chunk: PrefillChunkOption = 1024

    def to_setting(self, talk: TalkGroup) -> ChatSetting:
        """Raises UsageError."""
        if self.cache == "off":
            raise UsageError(
                "--cache off compares nothing", hint="the run without the cache is always made"
            )
        size = self.host_memory
        return ChatSetting(
            conversations=talk.conversations,
            turns=talk.turns,
            sizes=Sizes(system=talk.system, user=talk.user, new=talk.new),
            cache=self.cache,
            slots=self.cache_slots,
            kv_tokens=self.kv_capacity,
            device=self.device,
            kv_format=self.kv_dtype,
            prefill_chunk=self.prefill_chunk,
            host_bytes=None if size is None else byte_size(size, "--host-memory"),
        )


@app.command()
@with_groups
def chat(
    ctx: typer.Context,
    chosen: ModelGroup,
    talk: TalkGroup,
    memory: MemoryGroup,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: DebugOption = False,
) -> None:
    """Measure conversations through the engine, without the context cache and with it.

    The conversations take turns, one request at a time, each with the whole history as its prompt.
    MODEL reads messages in its own template, a geometry random token ids.
    """
    with reported(debug=debug, as_json=as_json, flags=_FLAGS):
        setting, model = memory.to_setting(talk), chosen.name()
        with Interrupt() as interrupt:
            report = _measured(ctx.obj, model, setting, interrupt)
        if as_json:
            typer.echo(json.dumps(report))
        else:
            from ninfer_ops_triton.bench.chat_table import print_chat

            print_chat(report)
        if interrupt.requested:
            leave()


def _measured(
    host: PluginHost, model: str | None, setting: ChatSetting, interrupt: Interrupt
) -> dict[str, Any]:
    artifact = artifact_for(host, model, interrupt)
    messages = not is_geometry(artifact, host)
    return ChatSession(artifact, setting, host, interrupt, messages=messages).measure()
