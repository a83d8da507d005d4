"""Plug-in `ops_triton`: kernels for CUDA devices."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import OpBackendEntry


@hookimpl
def ninfer_op_backends() -> Iterable[OpBackendEntry]:
    """Offer the Triton kernels."""
    yield OpBackendEntry(
        name="triton",
        summary="Triton kernels for NVIDIA GPUs",
        device_kinds=("cuda",),
        load="ninfer_ops_triton.backend:BACKEND",
        unavailable="this version of ninfer-ops-triton holds no kernels yet",
        priority=10,
    )
