"""Plug-in `ops_triton`: kernels for CUDA devices."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import CommandEntry, DeviceFacts, OpBackendEntry, Verdict

OLDEST_CAPABILITY = (8, 0)


@hookimpl
def ninfer_op_backends() -> Iterable[OpBackendEntry]:
    """Offer the Triton kernels."""
    yield OpBackendEntry(
        name="triton",
        summary="Triton kernels for NVIDIA GPUs",
        device_kinds=("cuda",),
        load="ninfer_ops_triton.backend:BACKEND",
        accepts=_accepts,
        priority=10,
    )


@hookimpl
def ninfer_commands() -> Iterable[CommandEntry]:
    """Offer the measurement of models on this machine."""
    yield CommandEntry(
        name="bench",
        help="Measure how fast a model runs here.",
        load="ninfer_ops_triton.bench.command:app",
    )


def _accepts(facts: DeviceFacts) -> Verdict:
    capability = facts.compute_capability or (0, 0)
    if capability >= OLDEST_CAPABILITY:
        return Verdict.yes()
    return Verdict.no(
        f"{facts.model or 'the device'} has compute capability {capability[0]}.{capability[1]}; "
        "8.0 or newer is needed"
    )
