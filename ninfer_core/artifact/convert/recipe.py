"""Recipes: which format each parameter gets, what is stored side by side, what uses permit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ninfer_core.artifact.convert.architecture import (
    FusionGroup,
    ParameterRole,
    ParameterSpec,
)
from ninfer_core.artifact.errors import ConversionError
from ninfer_core.artifact.formats import CONTIGUOUS
from ninfer_core.artifact.model import ActivationPolicy, Use


@dataclass(frozen=True, slots=True)
class Storage:
    """A format and one of its layouts."""

    format: str
    layout: str = CONTIGUOUS


class RecipeBuilder:
    """Collects a recipe's decisions about the parameters of one model.

    ``source_dtypes`` gives the torch dtype name of each parameter as the checkpoint stores it.
    """

    def __init__(
        self,
        parameters: Iterable[ParameterSpec],
        groups: Iterable[FusionGroup],
        source_dtypes: Mapping[str, str],
    ) -> None:
        self.parameters = tuple(parameters)
        self.groups = tuple(groups)
        self.source_dtypes = source_dtypes
        self.storage: dict[str, Storage] = {}
        self.parents: dict[str, FusionGroup] = {}
        self.uses: dict[tuple[str, str], Use] = {}

    def assign(self, parameter: ParameterSpec, storage: Storage) -> None:
        """Store a parameter in a format; the last word counts."""
        self.storage[parameter.name] = storage

    def group(self, group: FusionGroup) -> None:
        """Store the members as one parent tensor, in their order."""
        self.parents.update(dict.fromkeys(group.members, group))

    def use(
        self,
        parameter: ParameterSpec,
        input_name: str,
        activation: ActivationPolicy,
        auxiliaries: Mapping[str, str] | None = None,
    ) -> None:
        """Declare what the use of a parameter by an input permits."""
        use = Use(parameter.name, input_name, activation, auxiliaries or {})
        self.uses[parameter.name, input_name] = use


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named way to store a model."""

    name: str
    summary: str
    apply: Callable[[RecipeBuilder], None]


class RecipeBook:
    """Recipes by name."""

    def __init__(self, recipes: Iterable[Recipe]) -> None:
        self._recipes = {recipe.name: recipe for recipe in recipes}

    def get(self, name: str) -> Recipe:
        found = self._recipes.get(name)
        if found is None:
            known = ", ".join(self._recipes)
            raise ConversionError("recipe", f"{name!r} is unknown", f"choose one of {known}")
        return found

    def __iter__(self) -> Iterator[Recipe]:
        return iter(self._recipes.values())


def _store_plainly(builder: RecipeBuilder, choose: Callable[[ParameterSpec, str], str]) -> None:
    """Plain formats chosen by (parameter, source dtype); groups wherever members agree."""
    for parameter in builder.parameters:
        format_name = choose(parameter, builder.source_dtypes[parameter.name])
        builder.assign(parameter, Storage(format_name))
        for input_name in parameter.inputs:
            builder.use(parameter, input_name, ActivationPolicy.A16_ONLY)
    for group in builder.groups:
        if len({builder.storage[member] for member in group.members}) == 1:
            builder.group(group)


def _bf16(parameter: ParameterSpec, source_dtype: str) -> str:
    keeps_more = parameter.role is ParameterRole.VECTOR and source_dtype != "bfloat16"
    return "fp32" if keeps_more else "bf16"


RECIPES = RecipeBook(
    (
        Recipe(
            "bf16",
            "matrices in bf16; vectors as precise as the checkpoint has them",
            lambda builder: _store_plainly(builder, _bf16),
        ),
        Recipe(
            "fp32",
            "everything in fp32",
            lambda builder: _store_plainly(builder, lambda parameter, dtype: "fp32"),
        ),
    )
)
