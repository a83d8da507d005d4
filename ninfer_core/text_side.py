"""The serving process's half of a model: its text side, and what the engine's process is to load.

The other composition root beside ``instance``: it joins an artifact and the Frontend of a
registered architecture, without devices, ops or weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from ninfer_core import instance
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.instance import FrontendOpener, FrontendRequest
from ninfer_core.engine.remote import RemotePlan, TextSide
from ninfer_core.grammars import grammar_backend
from ninfer_core.hookspecs import ARCHITECTURES
from ninfer_core.plugins import PluginHost, Selection, architecture_for, load_plugins

OPENER: Final = "ninfer_core.instance:instance_factory"


def remote_plan(
    source: str | Path, options: EngineOptions, host: PluginHost | None = None
) -> RemotePlan:
    """What starts the engine of ``source`` in a process of its own, with the plug-ins of ``host``.

    As with ``instance_factory``, what is wrong with a plug-in or with ``source`` is raised here,
    before a process starts. Raises NinferError.
    """
    host = host or load_plugins(Selection.of(options.plugins, options.disabled_plugins))
    path = instance.check_start(source, options, host)
    return RemotePlan(
        opener=OPENER,
        source=path,
        selection=replace(host.selection, pins=host.pins()),
        text_side=lambda: open_text_side(path, options, host),
    )


def open_text_side(path: Path, options: EngineOptions, host: PluginHost) -> TextSide:
    """Tokenizer, template and grammar sources of the artifact, as its builder opens them; no
    weights are read and no tensor library is imported. Raises NinferError."""
    from ninfer_core.artifact import open_artifact
    from ninfer_core.conversion import weight_formats

    artifact = open_artifact(path, weight_formats(host))
    try:
        entry = architecture_for(host, [artifact.architecture or "unnamed"])
        opener: FrontendOpener = host.load(ARCHITECTURES, entry.name, "frontend")
        frontend = opener(
            FrontendRequest(
                artifact=artifact,
                max_context=instance.context_of(artifact, options),
                grammar_backend=grammar_backend(host, options.grammar_backend),
                options=instance.frontend_options(options),
            )
        )
    except BaseException:
        artifact.close()
        raise

    def close() -> None:
        try:
            frontend.close()
        finally:
            artifact.close()

    return TextSide(frontend=frontend, close=close)
