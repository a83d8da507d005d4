"""From matched tensors and a recipe to the objects, bindings and uses of an artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninfer_core.artifact.convert.architecture import ParameterRole, ParameterSpec
from ninfer_core.artifact.convert.matching import Match
from ninfer_core.artifact.convert.recipe import Recipe, RecipeBuilder, Storage
from ninfer_core.artifact.convert.safetensors import SourceTensor
from ninfer_core.artifact.model import (
    TARGET_COMPONENT,
    Binding,
    BindingPart,
    Component,
    Provenance,
    Use,
)
from ninfer_core.artifact.placement import ArtifactDraft, ResourceDraft, TensorDraft


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter inside an object, and the tensors that it is made of."""

    spec: ParameterSpec
    sources: tuple[SourceTensor, ...]


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """A tensor object to be written: its members stand one after another in C order."""

    id: str
    shape: tuple[int, ...]
    storage: Storage
    members: tuple[Member, ...]

    @property
    def source_bytes(self) -> int:
        return sum(len(source.data) for member in self.members for source in member.sources)


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What will be written, before anything is."""

    match: Match
    objects: tuple[ObjectPlan, ...]
    uses: tuple[Use, ...]

    def draft(
        self, name: str, resources: Mapping[str, bytes], provenance: Provenance
    ) -> ArtifactDraft:
        """The artifact's draft; resources belong to the text component."""
        return ArtifactDraft(
            name=name,
            components=self._components(resources),
            objects=(
                *(
                    TensorDraft(o.id, o.shape, o.storage.format, o.storage.layout)
                    for o in self.objects
                ),
                *(ResourceDraft(resource_id(key), len(data)) for key, data in resources.items()),
            ),
            bindings=tuple(binding for plan in self.objects for binding in _bindings(plan)),
            uses=self.uses,
            provenance=provenance,
        )

    def _components(self, resources: Mapping[str, bytes]) -> tuple[Component, ...]:
        ids = {key: resource_id(key) for key in resources}
        return tuple(
            Component(c.name, c.config, c.target, ids if c.name == TARGET_COMPONENT else {})
            for c in self.match.components
        )


def resource_id(name: str) -> str:
    """The object id of a resource."""
    return f"resource/{name}"


def plan_conversion(match: Match, recipe: Recipe, tables: Storage | None = None) -> ConversionPlan:
    """Let ``recipe`` decide about every parameter of the matched components.

    ``tables`` stores the vocabulary tables otherwise than the recipe would.
    """
    parameters = [p for component in match.components for p in component.parameters]
    groups = [group for component in match.components for group in component.groups]
    dtypes = {p.name: _source_dtype(match.sources[p.name]) for p in parameters}
    builder = RecipeBuilder(parameters, groups, dtypes)
    recipe.apply(builder)
    for parameter in parameters:
        if tables is not None and parameter.role is ParameterRole.TABLE:
            builder.assign(parameter, tables)
    return ConversionPlan(match, _objects(builder, match), tuple(builder.uses.values()))


def _source_dtype(sources: Sequence[SourceTensor]) -> str:
    dtypes = {source.torch_dtype for source in sources}
    return dtypes.pop() if len(dtypes) == 1 else "float32"


def _objects(builder: RecipeBuilder, match: Match) -> tuple[ObjectPlan, ...]:
    """One object per group or lone parameter, where its first member stands."""
    specs = {parameter.name: parameter for parameter in builder.parameters}
    objects: dict[str, ObjectPlan] = {}
    for parameter in builder.parameters:
        group = builder.parents.get(parameter.name)
        name, members = (
            (group.name, group.members) if group else (parameter.name, (parameter.name,))
        )
        if name not in objects:
            found = tuple(Member(specs[m], match.sources[m]) for m in members)
            shape = _stacked_shape([member.spec.shape for member in found])
            objects[name] = ObjectPlan(name, shape, builder.storage[parameter.name], found)
    return tuple(objects.values())


def _stacked_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _bindings(plan: ObjectPlan) -> list[Binding]:
    bindings, first = [], 0
    for member in plan.members:
        count = math.prod(member.spec.shape)
        part = BindingPart(plan.id, first, count)
        bindings.append(Binding(member.spec.name, member.spec.shape, (part,)))
        first += count
    return bindings
