"""Parameters in a device's memory: one arena, filled plane by plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ninfer_core.artifact import Artifact
from ninfer_core.device.base import ALIGNMENT, LaneRole
from ninfer_core.errors import UsageError
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_qwen3_5.config import FULL_ATTENTION, TextConfig
from ninfer_qwen3_5.convert.parameters import layer_shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ninfer_core.device.base import Arena, Device


class DeviceResidence:
    """Uploads on the compute lane; ``arena`` "weights" is allocated before the first byte is read,
    so that a model that does not fit fails at once, with the numbers."""

    def __init__(self, device: Device, size: int) -> None:
        free = device.memory().free
        if size > free:
            raise UsageError(
                f"the weights need {size:,} bytes; {device.name} has {free:,} free of "
                f"{device.memory().total:,}",
                hint="convert with --weights fp8 or q4, or free the device",
            )
        self._device = device
        self._lane = device.lane(LaneRole.COMPUTE)
        self.arena: Arena = device.arena("weights", size)

    def matrix(self, name: str, weight: WeightMatrix) -> WeightMatrix:
        planes = {
            plane: self._place(f"{name}.{plane}", values) for plane, values in weight.planes.items()
        }
        return replace(weight, planes=planes)

    def vector(self, name: str, values: Tensor) -> Tensor:
        return self._place(name, values)

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.arena.take(name, shape, dtype)

    def _place(self, name: str, values: Tensor) -> Tensor:
        if values.device == self._device.torch_device:
            return values
        placed = self.arena.take(name, values.shape, values.dtype)
        self._device.upload(values.contiguous(), placed, self._lane)
        return placed


TABLES = 1 << 16
"""Bytes for small tables that a drafter makes itself."""


def resident_bytes(
    artifact: Artifact, config: TextConfig, components: Sequence[str] = ("text",)
) -> int:
    """What components need in an arena: stored matrices, and vectors in fp32."""
    stored = {
        part.object: artifact.tensor(part.object)
        for component in components
        for binding in artifact.bindings(component)
        for part in binding.parts
    }
    beside = (
        math.prod(binding.shape)
        for component in components
        for binding in artifact.bindings(component)
        if component != "text" and len(binding.shape) != 2
    )
    widened = sum(padded(4 * size) for size in beside)
    widened += TABLES * (len(components) > 1)
    return sum(padded(t.bytes) for t in stored.values()) + widened + vector_bytes(config)


def vector_bytes(config: TextConfig) -> int:
    """fp32 bytes of everything that is no matrix: norms, convolutions, gates, rotary tables."""
    sizes = [config.hidden_size, config.rotary_dim, 2 * config.rotary_dim]
    for kind in config.layer_types:
        shapes = layer_shapes(config, full=kind == FULL_ATTENTION)
        sizes += [math.prod(shape) for shape in shapes.values() if len(shape) != 2]
    return sum(padded(4 * size) for size in sizes)


def padded(size: int) -> int:
    """Bytes that a tensor of ``size`` bytes takes of an arena at most."""
    return -(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT
