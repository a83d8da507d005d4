"""Bytes that a decode round cannot avoid: weights, states read and written, keys and values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ninfer_core.artifact import Artifact, builtin_registry, open_artifact
from ninfer_core.artifact.convert import RECIPES, ParameterRole, ParameterSpec, RecipeBuilder
from ninfer_core.artifact.formats import storage_bytes
from ninfer_core.conversion import weight_formats
from ninfer_core.hookspecs import ARCHITECTURES, KV_FORMATS
from ninfer_core.plugins import PluginHost, architecture_for

GEOMETRY = "geometry.json"
"""Resource of an artifact without weights; its ``recipe`` names the formats of random ones."""

FULL = "full_attention"
CONV_HISTORY = 3
"""Rows that a causal convolution of width 4 remembers."""


@dataclass(frozen=True, slots=True)
class RoundBytes:
    """Bytes of one round by purpose."""

    weights: int
    state: int
    kv: int

    @property
    def total(self) -> int:
        return self.weights + self.state + self.kv

    def to_json(self) -> dict[str, int]:
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a model moves for one round of B rows, in bytes.

    ``layers`` and ``head`` are read once, the head only as far as ids can be answered;
    ``embedding_row``, ``state`` (delta rule and convolution, of all layers) and ``kv_token`` (keys
    and values of one token in all layers) count per row.
    """

    layers: int
    head: int
    embedding_row: int
    state: int
    kv_token: int

    def of_round(self, rows: int, context: float) -> RoundBytes:
        """Each row reads the keys and values of ``context`` tokens, its own included, and stores
        those of one; states are read and written."""
        return RoundBytes(
            weights=self.layers + self.head + rows * self.embedding_row,
            state=2 * rows * self.state,
            kv=round(rows * (context + 1) * self.kv_token),
        )


def traffic_of(path: Path, host: PluginHost, kv_format: str, addressable: int) -> Traffic:
    """The traffic of the text model in an artifact, with 16-bit activations.

    ``addressable`` ids can be answered. Raises PluginError for an unknown ``kv_format``.
    """
    with open_artifact(path, weight_formats(host)) as artifact:
        config = artifact.component("text").config
        entry = architecture_for(host, [artifact.architecture or "unnamed"])
        converter = host.load(ARCHITECTURES, entry.name, "converter")
        parameters = converter.describe(config).components[0].parameters
        sizes = parameter_bytes(artifact, parameters)
    bits = host.get(KV_FORMATS, kv_format).bits_per_value
    return traffic(config.get("text_config") or config, parameters, sizes, bits, addressable)


def traffic(
    config: Mapping[str, Any],
    parameters: Sequence[ParameterSpec],
    sizes: Mapping[str, int],
    kv_bits: float,
    addressable: int,
) -> Traffic:
    """By formula. The first vocabulary table is the embedding, the last one the head; where they
    are one it is read as both."""
    tables = [p for p in parameters if p.role is ParameterRole.TABLE]
    rows = tables[0].shape[0]
    linear, full = _layers(config)
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    recurrent = 4 * values * config["linear_key_head_dim"]
    history = 2 * CONV_HISTORY * (2 * keys + values)
    cached = 2 * config["num_key_value_heads"] * config["head_dim"]
    return Traffic(
        layers=sum(sizes[p.name] for p in parameters if p.role is not ParameterRole.TABLE),
        head=sizes[tables[-1].name] * min(addressable, rows) // rows,
        embedding_row=sizes[tables[0].name] // rows,
        state=linear * (recurrent + history),
        kv_token=round(full * cached * kv_bits / 8),
    )


def parameter_bytes(artifact: Artifact, parameters: Sequence[ParameterSpec]) -> dict[str, int]:
    """Resident bytes of each parameter: matrices and tables as stored, all others in fp32."""
    geometry = artifact.resource("text", GEOMETRY)
    if geometry is None:
        stored = {p.name: _stored_bytes(artifact, p.name) for p in parameters}
    else:
        stored = _recipe_bytes(parameters, json.loads(geometry)["recipe"])
    return {p.name: stored[p.name] if _is_matrix(p) else 4 * math.prod(p.shape) for p in parameters}


def _stored_bytes(artifact: Artifact, name: str) -> int:
    binding = artifact.binding(name)
    if binding is None:
        return 0
    parts = ((artifact.tensor(part.object), part.count) for part in binding.parts)
    return sum(tensor.bytes * count // tensor.elements for tensor, count in parts)


def _recipe_bytes(parameters: Sequence[ParameterSpec], recipe: str) -> dict[str, int]:
    builder = RecipeBuilder(parameters, (), dict.fromkeys((p.name for p in parameters), "bfloat16"))
    RECIPES.get(recipe).apply(builder)
    formats = builtin_registry()
    return {
        p.name: storage_bytes(
            formats.get(builder.storage[p.name].format, p.name),
            p.shape,
            builder.storage[p.name].layout,
        )
        for p in parameters
    }


def _is_matrix(parameter: ParameterSpec) -> bool:
    return parameter.role is not ParameterRole.VECTOR and len(parameter.shape) == 2


def _layers(config: Mapping[str, Any]) -> tuple[int, int]:
    """How many layers are linear attention, and how many full."""
    count = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    full = kinds.count(FULL) if kinds else count // config["full_attention_interval"]
    return count - full, full
