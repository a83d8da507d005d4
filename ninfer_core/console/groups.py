"""Groups of options: a dataclass whose fields Typer reads as parameters of a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` as Typer should see it: each dataclass parameter spread into its fields.

    The fields carry ``Annotated`` Typer declarations and defaults; the command receives the filled
    dataclass. Field names must not repeat between groups.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            members = {f.name: values.pop(f.name) for f in fields(group)}
            values[name] = group(**members)
        command(**values)

    parameters = list(_spread(inspect.signature(command), hints, groups))
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _spread(
    signature: inspect.Signature, hints: dict[str, Any], groups: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    for name, parameter in signature.parameters.items():
        if name in groups:
            members = get_type_hints(groups[name], include_extras=True)
            for field in fields(groups[name]):
                yield _parameter(field.name, members[field.name], _default(field))
        else:
            yield _parameter(name, hints[name], parameter.default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default
