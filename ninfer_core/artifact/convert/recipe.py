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
from ninfer_core.artifact.formats import CONTIGUOUS, FP8_ROW, Q4_GROUPS, ROW_SCALE, ROW_SPLIT
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
    """A named way to store a model. ``alias`` is a shorter name for people to type."""

    name: str
    summary: str
    apply: Callable[[RecipeBuilder], None]
    alias: str = ""


class RecipeBook:
    """Recipes by name or alias."""

    def __init__(self, recipes: Iterable[Recipe]) -> None:
        self._recipes = {recipe.name: recipe for recipe in recipes}
        self._aliases = {recipe.alias: recipe for recipe in self if recipe.alias}

    def get(self, name: str) -> Recipe:
        found = self._recipes.get(name) or self._aliases.get(name)
        if found is None:
            known = ", ".join(
                f"{recipe.name} ({recipe.alias})" if recipe.alias else recipe.name
                for recipe in self
            )
            raise ConversionError("recipe", f"{name!r} is unknown", f"choose one of {known}")
        return found

    def __iter__(self) -> Iterator[Recipe]:
        return iter(self._recipes.values())


_FP8 = Storage(FP8_ROW.name, ROW_SCALE)
_Q4 = Storage(Q4_GROUPS.name, ROW_SPLIT)
_TABLES = {
    "bf16": Storage("bf16"),
    "fp32": Storage("fp32"),
    "fp8": _FP8,
    _FP8.format: _FP8,
    "q4": _Q4,
    _Q4.format: _Q4,
}


def table_storage(name: str) -> Storage:
    """The storage of vocabulary tables by format name or alias; any recipe can take each."""
    found = _TABLES.get(name)
    if found is None:
        raise ConversionError("head", f"{name!r} is unknown", f"choose one of {', '.join(_TABLES)}")
    return found


def _bf16(parameter: ParameterSpec, source_dtype: str) -> Storage:
    keeps_more = parameter.role is ParameterRole.VECTOR and source_dtype != "bfloat16"
    return Storage("fp32" if keeps_more else "bf16")


def _store(
    builder: RecipeBuilder,
    choose: Callable[[ParameterSpec, str], Storage],
    activation: ActivationPolicy = ActivationPolicy.A16_ONLY,
) -> None:
    """Formats chosen by (parameter, source dtype), parents wherever members of a group agree.

    ``activation`` is what products with matrices permit; tables always meet 16-bit activations.
    """
    for parameter in builder.parameters:
        builder.assign(parameter, choose(parameter, builder.source_dtypes[parameter.name]))
        multiplied = parameter.role is ParameterRole.MATRIX
        for input_name in parameter.inputs:
            policy = activation if multiplied else ActivationPolicy.A16_ONLY
            builder.use(parameter, input_name, policy)
    for group in builder.groups:
        if len({builder.storage[member] for member in group.members}) == 1:
            builder.group(group)


def _quantised(matrices: Storage, tables: Storage) -> Callable[[ParameterSpec, str], Storage]:
    """``matrices`` for those that multiply activations, ``tables`` for the vocabulary; what has no
    use by itself (a convolution, norms, decay rates) stays as in the recipe ``bf16``."""

    def choose(parameter: ParameterSpec, source_dtype: str) -> Storage:
        if parameter.role is ParameterRole.TABLE:
            return tables
        if parameter.role is ParameterRole.MATRIX and parameter.inputs:
            return matrices
        return _bf16(parameter, source_dtype)

    return choose


RECIPES = RecipeBook(
    (
        Recipe(
            "bf16",
            "matrices in bf16; vectors as precise as the checkpoint has them",
            lambda builder: _store(builder, _bf16),
        ),
        Recipe(
            "fp32",
            "everything in fp32",
            lambda builder: _store(builder, lambda parameter, dtype: Storage("fp32")),
        ),
        Recipe(
            FP8_ROW.name,
            "matrices and tables in FP8 with a scale per row; 8-bit activations permitted",
            lambda builder: _store(builder, _quantised(_FP8, _FP8), ActivationPolicy.ALLOW_A8),
            alias="fp8",
        ),
        Recipe(
            Q4_GROUPS.name,
            "matrices in 4 bits with a scale per 64 columns; tables in FP8",
            lambda builder: _store(builder, _quantised(_Q4, _FP8)),
            alias="q4",
        ),
    )
)
