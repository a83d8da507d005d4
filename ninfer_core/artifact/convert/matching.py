"""Match a checkpoint's tensors with a model's parameters: nothing missing, extra or misshapen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninfer_core.artifact.convert.architecture import (
    ComponentSpec,
    ModelDescription,
    ParameterSpec,
    Place,
    SourceSpec,
)
from ninfer_core.artifact.convert.safetensors import SourceTensor
from ninfer_core.artifact.errors import ConversionError
from ninfer_core.artifact.model import TARGET_COMPONENT

_BELONG = "give a checkpoint whose config.json and weights belong together"


@dataclass(frozen=True, slots=True)
class Match:
    """The chosen components and, by parameter name, the tensors that each parameter is made of.

    ``not_carried`` and ``ignored`` are the other tensors of the checkpoint, ``notes`` says why in
    words.
    """

    components: tuple[ComponentSpec, ...]
    sources: Mapping[str, tuple[SourceTensor, ...]]
    not_carried: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]


def match_tensors(
    description: ModelDescription,
    tensors: Mapping[str, SourceTensor],
    requested: Sequence[str] | None,
) -> Match:
    """Choose components (all that are present when ``requested`` is None) and find their tensors.

    Raises `ConversionError` naming the first tensor or component at fault.
    """
    placed = _place_all(description, tensors)
    present = Counter(place.component for place in placed if place.ignored is None)
    components = _select(description, present, requested)
    chosen = {component.name for component in components}
    ignored = [place for place in placed if place.ignored is not None]
    wanted = {
        (place.component, place.key): tensor
        for place, tensor in placed.items()
        if place.component in chosen and place.ignored is None
    }
    sources: dict[str, tuple[SourceTensor, ...]] = {}
    for component in components:
        sources.update(component_sources(component, wanted))
    refuse_extra([tensor.name for tensor in wanted.values()])
    left = [place for place in placed if place.component not in chosen and place.ignored is None]
    return Match(
        components=components,
        sources=sources,
        not_carried=tuple(sorted(placed[place].name for place in left)),
        ignored=tuple(sorted(placed[place].name for place in ignored)),
        notes=(*_notes(description, present, chosen), *_reasons(ignored, placed)),
    )


def _place_all(
    description: ModelDescription, tensors: Mapping[str, SourceTensor]
) -> dict[Place, SourceTensor]:
    placed: dict[Place, SourceTensor] = {}
    unknown = []
    for name, tensor in tensors.items():
        place = description.locate(name)
        if place is None:
            unknown.append(name)
        elif place in placed:
            raise ConversionError(
                name, f"is the same parameter as {placed[place].name}", "remove one of the two"
            )
        else:
            placed[place] = tensor
    refuse_extra(unknown)
    return placed


def refuse_extra(names: Sequence[str]) -> None:
    """Raise for the first of ``names``, if any."""
    if names:
        first = min(names)
        raise ConversionError(
            first, f"is no tensor of this architecture{_others(len(names))}", _BELONG
        )


def _others(count: int) -> str:
    return f" (nor are {count - 1} others)" if count > 1 else ""


def _select(
    description: ModelDescription, present: Mapping[str, int], requested: Sequence[str] | None
) -> tuple[ComponentSpec, ...]:
    if requested is None:
        return tuple(
            component
            for component in description.components
            if component.name == TARGET_COMPONENT or present.get(component.name)
        )
    known = [component.name for component in description.components]
    for name in requested:
        if name not in known:
            count = present.get(name, 0)
            held = f", though the checkpoint holds {count} tensors of it" if count else ""
            raise ConversionError(
                "components",
                f"{name!r} cannot be converted from this checkpoint{held}",
                f"choose from {', '.join(known)}",
            )
    if TARGET_COMPONENT not in requested:
        raise ConversionError("components", f"{TARGET_COMPONENT!r} is missing", "add it")
    return tuple(component for component in description.components if component.name in requested)


def component_sources(
    component: ComponentSpec, wanted: dict[tuple[str, str], SourceTensor]
) -> dict[str, tuple[SourceTensor, ...]]:
    """Tensors by parameter; takes them out of ``wanted``."""
    missing = [
        source.key
        for parameter in component.parameters
        for source in parameter.sources
        if (component.name, source.key) not in wanted
    ]
    if missing:
        more = f", and so are {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ConversionError(
            missing[0], f"the tensor of component {component.name!r} is missing{more}", _BELONG
        )
    return {
        parameter.name: _parameter_sources(component.name, parameter, wanted)
        for parameter in component.parameters
    }


def _parameter_sources(
    component: str, parameter: ParameterSpec, wanted: dict[tuple[str, str], SourceTensor]
) -> tuple[SourceTensor, ...]:
    return tuple(
        _checked(source, wanted.pop((component, source.key))) for source in parameter.sources
    )


def _checked(source: SourceSpec, tensor: SourceTensor) -> SourceTensor:
    if tensor.shape != source.shape:
        raise ConversionError(
            tensor.name,
            f"has shape {list(tensor.shape)}, config.json asks for {list(source.shape)}",
            _BELONG,
        )
    return tensor


def _notes(
    description: ModelDescription, present: Mapping[str, int], chosen: set[str]
) -> list[str]:
    notes = [
        f"{name}: {count} tensors are not carried"
        for name, count in sorted(present.items())
        if name not in chosen
    ]
    absent = (c.name for c in description.components if not present.get(c.name))
    notes.extend(f"{name}: config.json names it, the checkpoint has no tensors" for name in absent)
    return notes


def _reasons(ignored: Sequence[Place], placed: Mapping[Place, SourceTensor]) -> list[str]:
    return [f"{placed[place].name}: ignored, {place.ignored}" for place in ignored]
