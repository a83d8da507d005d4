"""Which model a bench runs: one of its own, or random weights in a released size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ninfer_core.artifact import open_artifact
from ninfer_core.console import Interrupt, Meter, ModelArgument, say
from ninfer_core.conversion import artifact_of, weight_formats
from ninfer_core.errors import UsageError
from ninfer_core.models import resolve_model
from ninfer_core.plugins import PluginHost
from ninfer_ops_triton.bench.traffic import GEOMETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGroup:
    """Which model."""

    model: ModelArgument = None
    geometry: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Random weights in this size, such as 9b, not MODEL."),
    ] = None
    weights: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Their format: bf16, fp8 or q4.")
    ] = None

    def name(self) -> str | None:
        """MODEL. Raises UsageError for two models, or a format of none."""
        if self.geometry is None:
            if self.weights is not None:
                raise UsageError("--weights needs --geometry", hint="name a size, such as 9b")
            return self.model
        if self.model is not None:
            raise UsageError(
                f"MODEL {self.model} and --geometry {self.geometry} are two models",
                hint="give one of them",
            )
        return f"geometry:{self.geometry}:{self.weights or 'bf16'}"


def artifact_for(host: PluginHost, model: str | None, interrupt: Interrupt) -> Path:
    """The artifact of MODEL, converted or written if need be. Raises NinferError."""
    resolved = resolve_model(model, host)
    if resolved.note:
        say("note", resolved.note)
    with Meter(interrupt.check) as meter:
        return artifact_of(resolved, host, meter.conversion)


def is_geometry(path: Path, host: PluginHost) -> bool:
    """Whether an artifact has random weights, and a vocabulary that means nothing."""
    with open_artifact(path, weight_formats(host)) as artifact:
        return artifact.resource("text", GEOMETRY) is not None
