"""From MODEL to an open engine, with something to look at while it loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
    from ninfer_core.engine.remote import RemoteEngine

T = TypeVar("T", "Engine", "RemoteEngine")
Progress = Callable[[str], None]


def open_engine(
    host: PluginHost, model: str | None, options: EngineOptions, interrupt: Interrupt
) -> Engine:
    """Resolve MODEL, convert a checkpoint into the cache when it is not there yet, and load.

    On a GPU a few lines say what the engine holds. Raises ModelNotFound, PluginError,
    ArtifactError, and Interrupted after Ctrl-C.
    """
    return _opened(host, model, interrupt, lambda path, _: _open(path, options, host))


def open_remote_engine(
    host: PluginHost, model: str | None, options: EngineOptions, interrupt: Interrupt
) -> RemoteEngine:
    """As :func:`open_engine`, with the engine in a process of its own, as serving needs it."""
    return _opened(host, model, interrupt, lambda path, say: _open_remote(path, options, host, say))


def _opened(
    host: PluginHost,
    model: str | None,
    interrupt: Interrupt,
    load: Callable[[Path, Progress], T],
) -> T:
    resolved = resolve_model(model, host)
    if resolved.note:
        say("note", resolved.note)
    artifact = interrupt.wait_for(lambda: _artifact(resolved, host, interrupt))
    title = f"loading {resolved.source or resolved.path.name}"
    with spinner(title) as status:
        engine = interrupt.wait_for(lambda: load(artifact, _shown(status, title)))
    say_start(engine.load_summary())
    return engine


def _shown(status: Any, title: str) -> Progress:
    """Shows what is done beside the turning sign, where there is one."""
    return lambda text: None if status is None else status.update(f"{title}: {text}")


def _artifact(resolved: ResolvedModel, host: PluginHost, interrupt: Interrupt) -> Path:
    with Meter(interrupt.check) as meter:
        return artifact_of(resolved, host, meter.conversion)


def _open(artifact: Path, options: EngineOptions, host: PluginHost) -> Engine:
    from ninfer_core import Engine
    from ninfer_core.instance import instance_factory

    return Engine.open(artifact, options, factory=instance_factory(artifact, options, host))


def _open_remote(
    artifact: Path, options: EngineOptions, host: PluginHost, progress: Progress
) -> RemoteEngine:
    from ninfer_core import RemoteEngine

    return RemoteEngine.open(artifact, options, host=host, progress=progress)
