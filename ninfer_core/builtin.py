"""Plug-in ``builtin``: what core itself provides, through the same hooks as everybody else."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import (
    CachePolicyEntry,
    CommandEntry,
    DeviceEntry,
    KvFormatEntry,
    OpBackendEntry,
    WeightFormatEntry,
)


@hookimpl
def ninfer_devices() -> Iterable[DeviceEntry]:
    """Offer NVIDIA GPUs, and the host's own processor for where there is none."""
    yield DeviceEntry(
        name="cuda",
        summary="An NVIDIA GPU of compute capability 8.0 or newer",
        open="ninfer_core.device.cuda.open:open_device",
        probe="ninfer_core.device.probe:cuda_verdict",
        priority=10,
    )
    yield DeviceEntry(
        name="cpu",
        summary="The host's processor, through torch",
        open="ninfer_core.device.cpu:open_device",
    )


@hookimpl
def ninfer_op_backends() -> Iterable[OpBackendEntry]:
    """Offer the reference ops, which are also the oracle."""
    yield OpBackendEntry(
        name="reference",
        summary="Every op in plain torch: the oracle, and the CPU backend",
        device_kinds=("cpu",),
        load="ninfer_core.ops.reference:BACKEND",
    )


@hookimpl
def ninfer_weight_formats() -> Iterable[WeightFormatEntry]:
    """Offer the plain formats and the two quantised ones."""
    yield WeightFormatEntry(
        name="bf16", summary="bfloat16 values", load="ninfer_core.artifact.formats:BF16"
    )
    yield WeightFormatEntry(
        name="fp32", summary="float32 values", load="ninfer_core.artifact.formats:FP32"
    )
    yield WeightFormatEntry(
        name="int32", summary="int32 values", load="ninfer_core.artifact.formats:INT32"
    )
    yield WeightFormatEntry(
        name="fp8_e4m3fn_row_bf16",
        summary="E4M3 codes, a bfloat16 scale for each row",
        load="ninfer_core.artifact.formats:FP8_ROW",
    )
    yield WeightFormatEntry(
        name="q4_g64_fp16",
        summary="4-bit codes, a float16 scale for each 64 columns",
        load="ninfer_core.artifact.formats:Q4_GROUPS",
    )


@hookimpl
def ninfer_kv_formats() -> Iterable[KvFormatEntry]:
    """Offer the two plain formats and the two with scales."""
    yield KvFormatEntry(name="bf16", summary="bfloat16 values", dtype="bfloat16", bits_per_value=16)
    yield KvFormatEntry(name="fp32", summary="float32 values", dtype="float32", bits_per_value=32)
    yield KvFormatEntry(
        name="int8",
        summary="8-bit codes, a float32 scale for each 64 values",
        dtype="int8",
        bits_per_value=8.5,
    )
    yield KvFormatEntry(
        name="fp8",
        summary="E4M3 codes, a float32 scale for each head of 256 values",
        dtype="float8_e4m3fn",
        bits_per_value=8.125,
    )


@hookimpl
def ninfer_cache_policies() -> Iterable[CachePolicyEntry]:
    """Offer the policy that keeps nothing, and the one that keeps what is likely wanted again."""
    yield CachePolicyEntry(
        name="off",
        summary="Keep no context after a request has ended",
        load="ninfer_core.engine.policies:OffPolicy",
    )
    yield CachePolicyEntry(
        name="reuse",
        summary="Keep what later requests are likely to start from, within what is free",
        load="ninfer_core.engine.policies_reuse:ReusePolicy",
    )


@hookimpl
def ninfer_commands() -> Iterable[CommandEntry]:
    """Offer the commands about the installation itself."""
    yield CommandEntry(
        name="plugins",
        help="List the installed plug-ins and what is wrong with any.",
        load="ninfer_core.cli.commands:plugins_command",
    )
    yield CommandEntry(
        name="env",
        help="Show versions, devices and settings, for a bug report.",
        load="ninfer_core.cli.environment:env_command",
    )
