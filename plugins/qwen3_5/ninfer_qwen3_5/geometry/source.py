"""Random parameters of a geometry, and the bytes that they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ninfer_core.artifact import ActivationPolicy, WeightFormat, builtin_registry
from ninfer_core.artifact.convert import RECIPES, ParameterRole, ParameterSpec
from ninfer_core.artifact.convert.recipe import RecipeBuilder, Storage
from ninfer_core.artifact.encoded import WEIGHT
from ninfer_core.artifact.validate import component_of
from ninfer_core.errors import UsageError
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.convert.parameters import mtp_parameters, text_parameters
from ninfer_qwen3_5.geometry.artifact import Geometry
from ninfer_qwen3_5.geometry.fill import fill
from ninfer_qwen3_5.load.device_residence import TABLES, padded, vector_bytes
from ninfer_qwen3_5.load.source import Shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Take = Callable[[str, tuple[int, ...], "torch.dtype"], "Tensor"]
"""Memory for a plane: name, shape, dtype; contents undefined."""

PlaneShapes = dict[str, tuple[tuple[int, ...], "torch.dtype"]]


class GeometrySource:
    """Fills planes that ``take`` hands out, on ``device``; equal seeds give equal weights on one
    kind of device. Small parameters lie where trained ones do (contract: ``ParameterSource``).
    ``drafter`` are the parameters of a component that this plug-in knows nothing of."""

    def __init__(
        self,
        config: TextConfig,
        geometry: Geometry,
        take: Take,
        device: torch.device,
        components: Sequence[str] = ("text",),
        drafter: Sequence[ParameterSpec] = (),
    ) -> None:
        import torch

        self._formats = stored_formats(config, geometry, components, drafter)
        self._policies = policies(config, geometry, components, drafter)
        self._plain = {parameter.name for parameter in drafter}
        self._take = take
        self._matrices = torch.Generator(device).manual_seed(geometry.seed)
        self._vectors = torch.Generator().manual_seed(geometry.seed)

    def matrix(self, prefix: str, shapes: Shapes, use: str | None) -> WeightMatrix:
        names = [prefix + key for key in shapes]
        weight_format = self._formats[names[0]][0]
        rows, columns = sum(shape[0] for shape in shapes.values()), next(iter(shapes.values()))[-1]
        planes = {
            plane: self._take(f"{' + '.join(names)}.{plane}", shape, dtype)
            for plane, (shape, dtype) in plane_shapes(
                self._formats[names[0]], rows, columns
            ).items()
        }
        fill(weight_format.name, planes, columns, self._matrices)
        met = ActivationPolicy.meet(self._policies[name, use] for name in names if use is not None)
        return WeightMatrix(
            weight_format.name, rows, columns, planes, allow_a8="A8" in met.permitted
        )

    def vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        import torch

        noise = torch.randn(shape, generator=self._vectors)
        if name in self._plain:
            return _plain_vector(0.1 * noise)
        if name.endswith("A_log"):
            return torch.empty(shape).uniform_(1.0, 16.0, generator=self._vectors).log_()
        if name.endswith("dt_bias"):
            step = torch.empty(shape).uniform_(-3.0, -1.0, generator=self._vectors)
            return _inverse_softplus(10.0**step)
        if name.endswith("conv1d.weight"):
            return 0.5 * noise
        centre = 1.0 if name.endswith("linear_attn.norm.weight") else 0.0
        return centre + 0.1 * noise


def stored_formats(
    config: TextConfig,
    geometry: Geometry,
    components: Sequence[str] = ("text",),
    drafter: Sequence[ParameterSpec] = (),
) -> Mapping[str, tuple[WeightFormat, str]]:
    """Format and layout that the recipe gives each matrix and table of the components, by name."""
    parameters = _parameters(config, components, drafter)
    builder = _recipe(geometry, parameters)
    known = builtin_registry()

    def found(storage: Storage, name: str) -> tuple[WeightFormat, str]:
        return known.get(storage.format, name), storage.layout

    return {
        parameter.name: found(builder.storage[parameter.name], parameter.name)
        for parameter in parameters
        if _is_matrix(parameter.role, parameter.shape)
    }


def policies(
    config: TextConfig,
    geometry: Geometry,
    components: Sequence[str] = ("text",),
    drafter: Sequence[ParameterSpec] = (),
) -> Mapping[tuple[str, str], ActivationPolicy]:
    """What the recipe permits each use, by parameter and input."""
    uses = _recipe(geometry, _parameters(config, components, drafter)).uses
    return {key: use.activation for key, use in uses.items()}


def geometry_bytes(
    config: TextConfig,
    geometry: Geometry,
    components: Sequence[str] = ("text",),
    drafter: Sequence[ParameterSpec] = (),
) -> int:
    """What the parameters need in an arena, by formula."""
    formats = stored_formats(config, geometry, components, drafter)
    parameters = _parameters(config, components, drafter)
    planes = (
        math.prod(shape) * dtype.itemsize
        for parameter in parameters
        if parameter.name in formats
        for shape, dtype in plane_shapes(formats[parameter.name], *parameter.shape).values()
    )
    beside = (
        4 * math.prod(p.shape)
        for p in parameters
        if p.name not in formats and not p.name.startswith("text.")
    )
    tables = TABLES * bool(drafter)
    return sum(map(padded, (*planes, *beside))) + vector_bytes(config) + tables


def _recipe(geometry: Geometry, parameters: Sequence[ParameterSpec]) -> RecipeBuilder:
    dtypes = dict.fromkeys((parameter.name for parameter in parameters), "bfloat16")
    builder = RecipeBuilder(parameters, (), dtypes)
    RECIPES.get(geometry.recipe).apply(builder)
    return builder


def _parameters(
    config: TextConfig, components: Sequence[str], drafter: Sequence[ParameterSpec]
) -> tuple[ParameterSpec, ...]:
    known = {"text": text_parameters, "mtp": mtp_parameters}
    described = {component_of(parameter.name) for parameter in drafter}
    unknown = [name for name in components if name not in known and name not in described]
    if unknown:
        raise UsageError(
            f"a geometry has no component {unknown[0]!r}", hint="give a converted checkpoint"
        )
    own = tuple(p for name in components if name in known for p in known[name](config))
    return (*own, *drafter)


def plane_shapes(stored: tuple[WeightFormat, str], rows: int, columns: int) -> PlaneShapes:
    """Shape and dtype of each plane of a matrix, as ops take it."""
    import torch

    weight_format, layout = stored
    if weight_format.torch_dtype is not None:
        return {WEIGHT: ((rows, columns), getattr(torch, weight_format.torch_dtype))}
    return {
        plane.name: ((rows, *plane.row_shape), getattr(torch, str(plane.dtype)))
        for plane in weight_format.planes((rows, columns), layout)
    }


def _is_matrix(role: ParameterRole, shape: tuple[int, ...]) -> bool:
    return role is not ParameterRole.VECTOR and len(shape) == 2


def _plain_vector(noise: Tensor) -> Tensor:
    """A drafter's scales multiply by ``w``, so lie about 1; its convolutions [side, tap, H] take
    about the row itself."""
    if noise.dim() == 1:
        return 1.0 + noise
    noise[:, 0] += 1.0
    return noise


def _inverse_softplus(values: Tensor) -> Tensor:
    return values + (-(-values).expm1()).log()
