"""Plug-in `qwen3_5`: the Qwen3.5 model family."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import ArchitectureEntry


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
