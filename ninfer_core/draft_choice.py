"""Which draft backend an engine runs: exactly one or none, fixed at start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.instance import Features, Purpose
from ninfer_core.errors import UsageError
from ninfer_core.hookspecs import DRAFT_BACKENDS, DraftBackendEntry, TargetFacts
from ninfer_core.plugins import PluginHost

if TYPE_CHECKING:
    from ninfer_core.artifact import Artifact
    from ninfer_core.artifact.convert import ComponentSpec, ParameterSpec
    from ninfer_core.contract.speculation import DraftBackend


def draft_entry(host: PluginHost, options: EngineOptions) -> DraftBackendEntry | None:
    """The backend asked for by name, or else the only one that a named plug-in offers.

    Raises PluginError for one that cannot be used, UsageError where the choice is not clear or the
    options contradict it.
    """
    offered = [entry.name for entry in host.entries(DRAFT_BACKENDS)]
    if options.draft is None and not offered:
        if options.draft_tokens:
            raise UsageError(
                f"draft_tokens is {options.draft_tokens}, and no draft backend was chosen",
                hint="add --plugin spec_mtp, or leave --draft-tokens out",
            )
        if options.draft_sampling:
            raise UsageError(
                "draft_sampling is on, and no draft backend was chosen",
                hint="add --plugin spec_mtp, or leave --draft-sampling out",
            )
        return None
    if options.draft is None and len(offered) > 1:
        raise UsageError(
            f"the draft backends {', '.join(offered)} are offered", hint="choose one with --spec"
        )
    entry = host.get(DRAFT_BACKENDS, options.draft or offered[0])
    if options.purpose is not Purpose.GENERATION:
        raise UsageError(f"draft backend {entry.name} is for generation", hint="leave it out")
    if options.draft_tokens > entry.max_drafts:
        raise UsageError(
            f"draft_tokens is {options.draft_tokens}; draft backend {entry.name} makes at most "
            f"{entry.max_drafts}",
            hint=f"give --draft-tokens {entry.max_drafts} or less",
        )
    return entry


def features_of(
    options: EngineOptions, entry: DraftBackendEntry | None, backend: DraftBackend | None
) -> Features:
    """What is bound besides text. Raises UsageError for more drafts than the weights allow."""
    if entry is None or backend is None:
        return Features(vision=options.vision)
    most = min(entry.max_drafts, backend.max_drafts)
    if options.draft_tokens > most:
        raise UsageError(
            f"draft_tokens is {options.draft_tokens}; the {entry.name} drafter of this artifact "
            f"makes at most {most}",
            hint=f"give --draft-tokens {most} or less",
        )
    drafts = options.draft_tokens or min(entry.usual_drafts, most)
    return Features(
        vision=options.vision,
        draft=entry.name,
        draft_tokens=drafts,
        draft_sampling=options.draft_sampling,
    )


def open_draft_backend(
    host: PluginHost, entry: DraftBackendEntry | None, artifact: Artifact
) -> DraftBackend | None:
    """The backend of ``entry``, unbound. Raises PluginError, UsageError for a target it refuses."""
    if entry is None:
        return None
    facts = _facts(artifact)
    verdict = entry.accepts(facts)
    if not verdict.ok:
        raise UsageError(
            f"draft backend {entry.name} does not fit {artifact.name}: {verdict.reason}",
            hint="leave it out, or choose another model",
        )
    backend: DraftBackend = host.load(DRAFT_BACKENDS, entry.name)(facts)
    return backend


def draft_parameters(
    host: PluginHost,
    entry: DraftBackendEntry | None,
    backend: DraftBackend | None,
    artifact: Artifact,
) -> tuple[ParameterSpec, ...]:
    """What the component of ``backend`` consists of, as ``entry`` tells the converter; nothing
    where it tells nothing. Raises ArtifactError for a configuration that it refuses."""
    if entry is None or backend is None or not entry.describe:
        return ()
    describe = host.load(DRAFT_BACKENDS, entry.name, "describe")
    config = artifact.component(backend.component).config
    described: ComponentSpec = describe(config, _facts(artifact))
    return described.parameters


def _facts(artifact: Artifact) -> TargetFacts:
    configs = {name: artifact.component(name).config for name in artifact.component_names}
    return target_facts(artifact.architecture or "", configs)


def target_facts(architecture: str, components: Mapping[str, Mapping[str, Any]]) -> TargetFacts:
    """What a drafter may know of a target with these components' configurations."""
    config = components["text"]
    text = config.get("text_config") or config
    return TargetFacts(
        architecture=architecture,
        layers=int(text.get("num_hidden_layers", 0)),
        hidden_size=int(text.get("hidden_size", 0)),
        vocab_size=int(text.get("vocab_size", 0)),
        mtp_layers=int(text.get("mtp_num_hidden_layers", 0)),
        kv_heads=int(text.get("num_key_value_heads", 0)),
        head_size=int(text.get("head_dim", 0)),
        components=components,
    )
