"""What a plug-in may provide: one file per seam, each with its record and its hook.

A plug-in imports records from here and the ``hookimpl`` marker from ``ninfer_core``.
"""

from __future__ import annotations

from typing import Any, Final

from ninfer_core.hookspecs.architectures import (
    ARCHITECTURES,
    ArchitectureEntry,
    ArchitectureSpecs,
)
from ninfer_core.hookspecs.cache import CACHE_POLICIES, CachePolicyEntry, CacheSpecs
from ninfer_core.hookspecs.commands import COMMANDS, CommandEntry, CommandSpecs
from ninfer_core.hookspecs.devices import DEVICES, DeviceEntry, DeviceFacts, DeviceSpecs
from ninfer_core.hookspecs.formats import (
    KV_FORMATS,
    WEIGHT_FORMATS,
    FormatSpecs,
    KvFormatEntry,
    WeightFormatEntry,
)
from ninfer_core.hookspecs.grammar import GRAMMAR_BACKENDS, GrammarBackendEntry, GrammarSpecs
from ninfer_core.hookspecs.lifecycle import HookspecRegistrar, LifecycleSpecs
from ninfer_core.hookspecs.markers import hookimpl, hookspec
from ninfer_core.hookspecs.media import MEDIA_FRONTENDS, MediaFrontendEntry, MediaSpecs
from ninfer_core.hookspecs.ops import OP_BACKENDS, OpBackendEntry, OpSpecs
from ninfer_core.hookspecs.records import Entry, Seam, Verdict, always
from ninfer_core.hookspecs.sources import MODEL_SOURCES, ModelSourceEntry, ModelSourceSpecs
from ninfer_core.hookspecs.speculation import (
    DRAFT_BACKENDS,
    DraftBackendEntry,
    SpeculationSpecs,
    TargetFacts,
)

SPECS: Final[tuple[type, ...]] = (
    LifecycleSpecs,
    DeviceSpecs,
    ArchitectureSpecs,
    OpSpecs,
    SpeculationSpecs,
    MediaSpecs,
    FormatSpecs,
    CacheSpecs,
    GrammarSpecs,
    ModelSourceSpecs,
    CommandSpecs,
)

SEAMS: Final[tuple[Seam[Any], ...]] = (
    DEVICES,
    ARCHITECTURES,
    OP_BACKENDS,
    DRAFT_BACKENDS,
    MEDIA_FRONTENDS,
    WEIGHT_FORMATS,
    KV_FORMATS,
    CACHE_POLICIES,
    GRAMMAR_BACKENDS,
    MODEL_SOURCES,
    COMMANDS,
)

__all__ = [
    "ARCHITECTURES",
    "CACHE_POLICIES",
    "COMMANDS",
    "DEVICES",
    "DRAFT_BACKENDS",
    "GRAMMAR_BACKENDS",
    "KV_FORMATS",
    "MEDIA_FRONTENDS",
    "MODEL_SOURCES",
    "OP_BACKENDS",
    "SEAMS",
    "SPECS",
    "WEIGHT_FORMATS",
    "ArchitectureEntry",
    "CachePolicyEntry",
    "CommandEntry",
    "DeviceEntry",
    "DeviceFacts",
    "DraftBackendEntry",
    "Entry",
    "GrammarBackendEntry",
    "HookspecRegistrar",
    "KvFormatEntry",
    "MediaFrontendEntry",
    "ModelSourceEntry",
    "OpBackendEntry",
    "Seam",
    "TargetFacts",
    "Verdict",
    "WeightFormatEntry",
    "always",
    "hookimpl",
    "hookspec",
]
