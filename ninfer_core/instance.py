"""The composition root: joins plug-ins, artifact, devices, ops and an architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninfer_core.contract.engine import DeviceUse, EngineOptions
from ninfer_core.contract.frontend import Frontend
from ninfer_core.contract.instance import ArchitectureBuilder, Budget, BuildRequest, ModelInstance
from ninfer_core.contract.program import Program, ScoringProgram
from ninfer_core.draft_choice import (
    draft_entry,
    draft_parameters,
    features_of,
    open_draft_backend,
)
from ninfer_core.draft_report import draft_details
from ninfer_core.engine.opened import InstanceFactory, OpenedInstance
from ninfer_core.engine.start_options import InvalidOption
from ninfer_core.errors import NinferError
from ninfer_core.grammars import grammar_backend, grammars_named
from ninfer_core.hookspecs import (
    ARCHITECTURES,
    CACHE_POLICIES,
    DEVICES,
    GRAMMAR_BACKENDS,
    KV_FORMATS,
    MEDIA_FRONTENDS,
    OP_BACKENDS,
    Verdict,
)
from ninfer_core.plugins import (
    PluginHost,
    PluginNotFound,
    Selection,
    architecture_for,
    load_plugins,
    op_backend_for,
)

if TYPE_CHECKING:
    from ninfer_core.artifact import Artifact
    from ninfer_core.device.base import Device
    from ninfer_core.ops.select import OpSelection

DEFAULT_CONTEXT = 8192
"""Tokens of context when none are asked for; the model's own limit where that is smaller."""


def instance_factory(
    source: str | Path, options: EngineOptions, host: PluginHost | None = None
) -> InstanceFactory:
    """What builds the instance of ``source`` on the thread that will run it.

    Plug-ins load and ``source`` is resolved here, on the calling thread, so that whatever is wrong
    with either is raised before a thread starts or a weight is read. Raises NinferError.
    """
    host = host or load_plugins(Selection.of(options.plugins, options.disabled_plugins))
    path = check_start(source, options, host)
    return lambda: open_instance(path, options, host)


def check_start(source: str | Path, options: EngineOptions, host: PluginHost) -> Path:
    """The artifact of ``source``, once every feature asked for is known to be there."""
    _require_features(host, options)
    return _artifact_path(source, host)


def open_instance(path: Path, options: EngineOptions, host: PluginHost) -> OpenedInstance:
    """Open the artifact and build its model. Raises NinferError with nothing left open."""
    from ninfer_core.artifact import open_artifact
    from ninfer_core.conversion import weight_formats

    artifact = open_artifact(path, weight_formats(host))
    devices: list[Device] = []
    try:
        devices += [open_device(text, host) for text in options.devices]
        return _build(artifact, devices, options, host)
    except BaseException:
        _close_all(devices, artifact)
        raise


def open_device(text: str, host: PluginHost) -> Device:
    """The device that ``text`` (``auto``, ``cpu``, ``cuda:N``) means. Raises DeviceUnavailable."""
    from ninfer_core.device.spec import choose_device, parse_device

    offered: dict[str, Callable[[], Verdict]] = {
        entry.name: host.load(DEVICES, entry.name, "probe") if entry.probe else Verdict.yes
        for entry in host.entries(DEVICES)
        if not entry.unavailable
    }
    choice = choose_device(parse_device(text), offered)
    device: Device = host.load(DEVICES, choice.spec.kind, "open")(choice.spec.index)
    return device


def choose_ops(device: Device, host: PluginHost) -> OpSelection:
    """One op table for ``device``, with the reason of each choice. Raises PluginError, OpError."""
    from ninfer_core.ops.select import select_ops

    entry, reason = op_backend_for(host, device.facts)
    return select_ops(host.load(OP_BACKENDS, entry.name), reason)


class RootedInstance:
    """An instance together with what it was built on; closes from the top down."""

    def __init__(self, instance: ModelInstance, devices: list[Device], artifact: Artifact) -> None:
        self._instance = instance
        self._devices = devices
        self._artifact = artifact

    @property
    def name(self) -> str:
        return self._instance.name

    @property
    def frontend(self) -> Frontend:
        return self._instance.frontend

    @property
    def program(self) -> Program | ScoringProgram:
        return self._instance.program

    def memory(self) -> Mapping[str, int]:
        return self._instance.memory()

    def close(self) -> None:
        try:
            self._instance.close()
        finally:
            _close_all(self._devices, self._artifact)


def _build(
    artifact: Artifact, devices: list[Device], options: EngineOptions, host: PluginHost
) -> OpenedInstance:
    from ninfer_core.ops.activations import within

    entry = architecture_for(host, [artifact.architecture or "unnamed"])
    selection = choose_ops(devices[0], host)
    ops, prepare = within(selection.ops, options.activations)
    policy = host.load(CACHE_POLICIES, options.cache_policy)()
    budget = _budget(artifact, options, keeps=policy.keeps)
    drafter = draft_entry(host, options)
    backend = open_draft_backend(host, drafter, artifact)
    request = BuildRequest(
        artifact=artifact,
        devices=tuple(devices),
        ops=ops,
        prepare_ops=selection.prepare,
        features=features_of(options, drafter, backend),
        draft_backend=backend,
        draft_parameters=partial(draft_parameters, host, drafter, backend, artifact),
        purpose=options.purpose,
        budget=budget,
        grammar_backend=grammar_backend(host, options.grammar_backend),
        frontend_options=frontend_options(options),
    )
    build: ArchitectureBuilder = host.load(ARCHITECTURES, entry.name, "build")
    instance = build(request)
    return OpenedInstance(
        instance=RootedInstance(instance, devices, artifact),
        architecture=artifact.architecture or entry.name,
        source=str(artifact.path),
        devices=tuple(device.name for device in devices),
        max_context=budget.max_context,
        cache_policy=policy,
        details={
            "ops": sorted({choice.backend for choice in selection.choices}),
            "frontend": dict(instance.frontend.describe()),
            **prepare.details(),
            **draft_details(drafter.name if drafter else None, instance.program),
        },
        warm_up=any(device.facts.kind != "cpu" for device in devices),
        device_use=lambda: tuple(map(device_use, devices)),
        explain=lambda error: explained(error, devices),
        grammars_named=grammars_named(host, options.grammar_backend),
    )


def explained(error: BaseException, devices: Sequence[Device]) -> BaseException:
    """``error`` of a library as the first of ``devices`` that knows it puts it."""
    if isinstance(error, NinferError):
        return error
    meanings = (device.explain(error) for device in devices)
    return next((found for found in meanings if found is not None), error)


def device_use(device: Device) -> DeviceUse:
    """What ``device`` says of itself now. On the thread that works with it."""
    memory, made = device.memory(), device.counters()
    return DeviceUse(
        name=device.name,
        model=device.facts.model,
        total=memory.total,
        free=memory.free,
        arenas=made.arenas,
        takes=made.takes,
        graphs=made.graphs,
        allocations=made.allocations,
    )


def _require_features(host: PluginHost, options: EngineOptions) -> None:
    """Refuse what no installed plug-in runs, by name, before anything is opened."""
    host.get(CACHE_POLICIES, options.cache_policy)
    draft_entry(host, options)
    if options.vision:
        _require_media(host)
    if options.grammar_backend is not None:
        host.get(GRAMMAR_BACKENDS, options.grammar_backend)
    if options.kv_format is not None:
        host.get(KV_FORMATS, options.kv_format)


def _require_media(host: PluginHost) -> None:
    frontends = host.described(MEDIA_FRONTENDS)
    if not frontends:
        raise PluginNotFound(
            "vision was asked for, and no installed plug-in reads images",
            hint="pip install ninfer-vision",
        )
    for entry in frontends:
        host.get(MEDIA_FRONTENDS, entry.name)


def _artifact_path(source: str | Path, host: PluginHost) -> Path:
    from ninfer_core.conversion import artifact_of
    from ninfer_core.models import resolve_model

    return artifact_of(resolve_model(source, host), host, lambda event: None)


def _budget(artifact: Artifact, options: EngineOptions, *, keeps: bool) -> Budget:
    """``keeps``: the cache policy keeps checkpoints, and the planner finds room for them."""
    slots = options.extra_state_slots
    if slots is None and not keeps:
        slots = 0
    return Budget(
        max_context=context_of(artifact, options),
        max_concurrency=options.max_concurrency,
        prefill_chunk=options.prefill_chunk,
        kv_tokens=options.kv_tokens,
        kv_format=options.kv_format,
        extra_state_slots=slots,
        host_bytes=options.host_bytes or 0,
        keep_checkpoints=keeps,
    )


def context_of(artifact: Artifact, options: EngineOptions) -> int:
    """Tokens of prompt and answer together. Raises InvalidOption for more than the model has."""
    limit = _model_context(artifact)
    context = options.max_context or min(limit, DEFAULT_CONTEXT)
    if context > limit:
        raise InvalidOption(
            f"max_context is {context}; this model has {limit} positions",
            hint=f"give --max-context {limit} or less",
        )
    return context


def _model_context(artifact: Artifact) -> int:
    """Positions that the model was made for, from its text configuration."""
    config = artifact.component("text").config
    text = config.get("text_config") or config
    positions = text.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1:
        from ninfer_core.artifact import ArtifactError

        raise ArtifactError(
            "text.config.max_position_embeddings",
            f"is {positions!r}",
            "convert the checkpoint again from a sound config.json",
        )
    return positions


def frontend_options(options: EngineOptions) -> dict[str, Any]:
    """What the start options mean to a Frontend."""
    return {} if options.chat_template is None else {"chat_template": str(options.chat_template)}


def _close_all(devices: list[Device], artifact: Artifact) -> None:
    for device in reversed(devices):
        device.close()
    artifact.close()
