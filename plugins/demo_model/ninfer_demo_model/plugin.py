"""Plug-in `demo_model`: the model source `demo`."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import ModelSourceEntry


@hookimpl
def ninfer_model_sources() -> Iterable[ModelSourceEntry]:
    """Offer the demo model."""
    yield ModelSourceEntry(
        name="demo",
        summary="A tiny trained model for trying NInfer and for its tests",
        resolve="ninfer_demo_model.source:resolve",
    )
