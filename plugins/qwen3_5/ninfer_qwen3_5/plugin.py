"""Plug-in `qwen3_5`: the Qwen3.5 model family."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import ArchitectureEntry, ModelSourceEntry


@hookimpl
def ninfer_architectures() -> Iterable[ArchitectureEntry]:
    """Offer the Qwen3.5 architectures."""
    yield ArchitectureEntry(
        name="qwen3_5",
        summary="Qwen3.5 dense text models",
        architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        build="ninfer_qwen3_5.build:build_instance",
        frontend="ninfer_qwen3_5.frontend:open_frontend",
        converter="ninfer_qwen3_5.convert:CONVERTER",
    )


@hookimpl
def ninfer_model_sources() -> Iterable[ModelSourceEntry]:
    """Offer the released sizes with random weights, for measurements."""
    yield ModelSourceEntry(
        name="geometry",
        summary="Random weights in the sizes 0.8b, 2b, 4b, 9b and 27b, for measurements",
        argument="SIZE[:WEIGHTS]",
        resolve="ninfer_qwen3_5.geometry.artifact:resolve",
    )
