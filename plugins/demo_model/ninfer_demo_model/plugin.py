"""Plug-in `demo_model`: the model that NInfer uses when none is named."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import ModelSourceEntry


@hookimpl
def ninfer_model_sources() -> Iterable[ModelSourceEntry]:
    """Offer the demo model."""
    yield ModelSourceEntry(
        name="demo",
        summary="A tiny Qwen3.5 model that copies, sorts, adds, recalls and calls tools",
        resolve="ninfer_demo_model.source:resolve",
    )
