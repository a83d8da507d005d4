"""From MODEL to an open engine, with something to look at while it loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ninfer_core.console.failures import say
from ninfer_core.console.interrupt import Interrupt
from ninfer_core.console.progress import Meter, spinner
from ninfer_core.console.start_report import say_start
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.conversion import artifact_of
from ninfer_core.models import ResolvedModel, resolve_model
from ninfer_core.plugins import PluginHost

if TYPE_CHECKING:
    from ninfer_core import Engine


def open_engine(
    host: PluginHost, model: str | None, options: EngineOptions, interrupt: Interrupt
) -> Engine:
    """Resolve MODEL, convert a checkpoint into the cache when it is not there yet, and load.

    On a GPU a few lines say what the engine holds. Raises ModelNotFound, PluginError,
    ArtifactError, and Interrupted after Ctrl-C.
    """
    resolved = resolve_model(model, host)
    if resolved.note:
        say("note", resolved.note)
    artifact = interrupt.wait_for(lambda: _artifact(resolved, host, interrupt))
    with spinner(f"loading {resolved.source or resolved.path.name}"):
        engine = interrupt.wait_for(lambda: _open(artifact, options, host))
    say_start(engine.load_summary())
    return engine


def _artifact(resolved: ResolvedModel, host: PluginHost, interrupt: Interrupt) -> Path:
    with Meter(interrupt.check) as meter:
        return artifact_of(resolved, host, meter.conversion)


def _open(artifact: Path, options: EngineOptions, host: PluginHost) -> Engine:
    from ninfer_core import Engine
    from ninfer_core.instance import instance_factory

    return Engine.open(artifact, options, factory=instance_factory(artifact, options, host))
