"""Convert Qwen3.5 checkpoints to artifacts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ninfer_core.artifact.convert import (
    ConversionReport,
    ConvertOptions,
    ConvertProgress,
    convert,
    no_progress,
)
from ninfer_qwen3_5.config import ARCHITECTURES, MOE_ARCHITECTURES
from ninfer_qwen3_5.convert.description import Qwen35Converter, Qwen35Description

__all__ = ["CONVERTER", "Qwen35Converter", "Qwen35Description", "convert_checkpoint"]

CONVERTER = Qwen35Converter()


def convert_checkpoint(
    source_dir: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    recipe: str = "bf16",
    components: Sequence[str] | None = None,
    name: str | None = None,
    progress: ConvertProgress | None = None,
    head: str | None = None,
) -> ConversionReport:
    """Convert a Qwen3.5 checkpoint directory to the artifact ``out_path``.

    ``recipe`` and ``head`` are those of ``ConvertOptions``.
    Raises ArtifactError naming the field at fault and the mend; nothing is left on disk then.
    """
    return convert(
        source_dir,
        out_path,
        architectures=dict.fromkeys(ARCHITECTURES + MOE_ARCHITECTURES, CONVERTER),
        options=ConvertOptions(recipe=recipe, head=head, components=components, name=name),
        progress=progress or no_progress,
    )
