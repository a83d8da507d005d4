"""The options about opening an engine, the same for every command that opens one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from ninfer_core.console.sizes import byte_size
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.errors import UsageError
from ninfer_core.hookspecs import DRAFT_BACKENDS
from ninfer_core.plugins import PluginHost

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A .ninfer file, a Hugging Face directory, or a source such as demo. "
        "Default: $NINFER_MODEL, else demo.",
        show_default=False,
    ),
]

DeviceOption = Annotated[str, typer.Option(metavar="auto|cpu|cuda:N", help="Device to run on.")]
KvDtypeOption = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="Number format of the context memory.")
]
PrefillChunkOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Prompt tokens per step.")
]
ActivationsOption = Annotated[
    str,
    typer.Option(
        metavar="auto|a16",
        help="a16 keeps 16 bits where the model permits 8 in products of prompts.",
    ),
]

SpecOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Draft backend, where --plugin names several.")
]
DraftTokensOption = Annotated[
    int | None, typer.Option(min=1, metavar="K", help="Draft tokens per round.")
]

ENGINE_FLAGS: Final = {
    "activations is": "--activations is",
    "draft_sampling": "--draft-sampling",
    "draft_tokens": "--draft-tokens",
    "extra_state_slots": "--cache-slots",
    "host_bytes": "--host-memory",
    "kv_format": "--kv-dtype",
    "kv_tokens": "--kv-capacity",
    "max_context": "--max-context",
    "prefill_chunk": "--prefill-chunk",
}
"""What the contract calls the values of these options; for :func:`reported`."""

SchemaInstructionOption = Annotated[
    bool,
    typer.Option(
        "--schema-instruction", help="Tell the model the form that its answer must have, too."
    ),
]


def check_draft_tokens(tokens: int | None, spec: str | None, host: PluginHost) -> None:
    """Raise UsageError for a number of drafts that nobody makes."""
    if tokens is not None and spec is None and not host.entries(DRAFT_BACKENDS):
        raise UsageError("--draft-tokens needs a draft backend", hint="add --plugin spec_mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGroup:
    """How the engine is opened; what is None is left to the model and the planner."""

    device: DeviceOption = "auto"
    max_context: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of prompt and answer together.")
    ] = None
    kv_capacity: Annotated[
        str, typer.Option(metavar="N|auto", help="Tokens of context memory in all.")
    ] = "auto"
    kv_dtype: KvDtypeOption = None
    prefill_chunk: PrefillChunkOption = 1024
    activations: ActivationsOption = "auto"
    cache: Annotated[
        str, typer.Option(metavar="NAME", help="Policy of the context cache: reuse, off, others.")
    ] = "reuse"
    cache_slots: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="State slots for kept contexts; else as fit."),
    ] = None
    host_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Host memory for contexts off the device, such as 8GiB."),
    ] = None
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Template in place of the model's own.")
    ] = None
    spec: SpecOption = None
    draft_tokens: DraftTokensOption = None
    draft_sampling: Annotated[
        bool,
        typer.Option(
            "--draft-sampling",
            help="Draw drafts at each request's temperature; a seed then gives another text.",
        ),
    ] = False

    def to_options(self, host: PluginHost) -> EngineOptions:
        """For one request at a time. Raises UsageError."""
        check_draft_tokens(self.draft_tokens, self.spec, host)
        if self.cache_slots is not None and self.cache == "off":
            raise UsageError("--cache off keeps nothing in --cache-slots", hint="leave one out")
        return EngineOptions(
            devices=(self.device,),
            plugins=host.selection.requested,
            disabled_plugins=host.selection.blocked,
            max_context=self.max_context,
            prefill_chunk=self.prefill_chunk,
            kv_tokens=self._kv_tokens(),
            kv_format=self.kv_dtype,
            activations=self.activations,
            draft=self.spec,
            draft_tokens=self.draft_tokens or 0,
            draft_sampling=self.draft_sampling,
            cache_policy=self.cache,
            extra_state_slots=self.cache_slots,
            host_bytes=self._host_bytes(),
            chat_template=self.chat_template,
            queue_timeout=None,
        )

    def _host_bytes(self) -> int | None:
        return None if self.host_memory is None else byte_size(self.host_memory, "--host-memory")

    def _kv_tokens(self) -> int | None:
        if self.kv_capacity == "auto":
            return None
        if not self.kv_capacity.isdecimal() or int(self.kv_capacity) == 0:
            raise UsageError(
                f"--kv-capacity is {self.kv_capacity!r}", hint="give a number of tokens, or auto"
            )
        return int(self.kv_capacity)
