"""JSON types of a tool's parameters, from its schema (JSON Schema 2020-12, and OpenAPI's nullable).

What a schema says of types alone is looked at, through references and combinations; where it says
nothing of them, that is None here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from ninfer_qwen3_5.frontend.tool_values import STRING, type_name

Types = frozenset[str]
Named = dict[str, Types | None]
"""What is said of the parameters that are named."""

_ALL = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
_MAX_DEPTH = 32


def parameter_types(parameters: Any) -> dict[str, Types]:
    """JSON types that each property of an object schema permits; ``string`` where it says none."""
    if not isinstance(parameters, Mapping):
        return {}
    return {name: types or STRING for name, types in _Schema(parameters).named(parameters).items()}


class _Schema:
    """Answers by what lies inside one document, ``root``."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        # Each schema is looked at once; one that comes up again within itself says nothing there.
        self._named: dict[int, Named] = {}
        self._types: dict[int, Types | None] = {}
        self._made: list[Any] = []  # so that no other object takes the place of one that is known

    @cached_property
    def _anchors(self) -> dict[str, Any]:
        return dict(_anchored(self._root, 0))

    def named(self, schema: Any, depth: int = 0) -> Named:
        """Of an object schema, and of all that it applies to the same object."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return {}
        if id(schema) not in self._named:
            self._named[id(schema)] = {}
            self._named[id(schema)] = self._find_named(schema, depth)
        return self._named[id(schema)]

    def _find_named(self, schema: Mapping[str, Any], depth: int) -> Named:
        own = schema.get("properties")
        found: Named = {}
        if isinstance(own, Mapping):
            found = {str(name): self.types(inner) for name, inner in own.items()}
        for inner in self._all_of(schema):
            for name, types in self.named(inner, depth + 1).items():
                found[name] = _both(found.get(name), types)
        for branches in self._any_of(schema):
            several = [self.named(inner, depth + 1) for inner in branches]
            for name in {name: None for named in several for name in named}:
                each = [named.get(name) for named in several]
                found[name] = _one_of(found.get(name), each)
        depending = schema.get("dependentSchemas")
        for inner in depending.values() if isinstance(depending, Mapping) else ():
            found = self.named(inner, depth + 1) | found
        return found

    def types(self, schema: Any, depth: int = 0) -> Types | None:
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return None
        if id(schema) not in self._types:
            self._types[id(schema)] = None
            self._types[id(schema)] = self._find_types(schema, depth)
        return self._types[id(schema)]

    def _find_types(self, schema: Mapping[str, Any], depth: int) -> Types | None:
        found = _both(_declared(schema), _listed(schema))
        for inner in self._all_of(schema):
            found = _both(found, self.types(inner, depth + 1))
        for branches in self._any_of(schema):
            found = _one_of(found, [self.types(inner, depth + 1) for inner in branches])
        refused = schema.get("not")
        if isinstance(refused, Mapping) and refused.keys() == {"type"}:
            found = (_ALL if found is None else found) - (_declared(refused) or frozenset())
        if schema.get("nullable") is True and found is not None:
            found |= {"null"}
        return found

    def _all_of(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(schema.get(keyword), str):
                yield self._resolved(schema[keyword])
        yield from _branches(schema, "allOf")

    def _any_of(self, schema: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Groups of which one holds at least."""
        for keyword in ("anyOf", "oneOf"):
            if branches := _branches(schema, keyword):
                yield branches
        if "if" in schema and ("then" in schema or "else" in schema):
            held = {"allOf": [schema["if"], schema.get("then", True)]}
            self._made.append(held)
            yield [held, schema.get("else", True)]

    def _resolved(self, reference: str) -> Any:
        """The target of a reference within the document (RFC 6901, or an anchor), None for any
        other."""
        document, mark, fragment = reference.partition("#")
        if document or not mark:
            return None
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment)
        target: Any = self._root
        for part in unquote(fragment).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                target = target.get(key) if isinstance(target, Mapping) else None
        return target


def _anchored(schema: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _MAX_DEPTH:
        return
    inner: Iterable[Any] = schema if isinstance(schema, list) else ()
    if isinstance(schema, Mapping):
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                yield schema[keyword], schema
        inner = schema.values()
    for value in inner:
        yield from _anchored(value, depth + 1)


def _branches(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    branches = schema.get(keyword)
    return branches if isinstance(branches, list) else []


def _declared(schema: Mapping[str, Any]) -> Types | None:
    declared = schema.get("type")
    listed = declared if isinstance(declared, list) else [declared]
    return frozenset(name for name in listed if isinstance(name, str) and name in _ALL) or None


def _listed(schema: Mapping[str, Any]) -> Types | None:
    if "const" in schema:
        return frozenset({type_name(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(map(type_name, schema["enum"]))
    return None


def _both(one: Types | None, other: Types | None) -> Types | None:
    """What both permit; a whole number is a number."""
    if one is None or other is None:
        return other if one is None else one
    common = _whole_too(one) & _whole_too(other)
    return common - {"integer"} if "number" in common else common


def _whole_too(types: Types) -> Types:
    return types | {"integer"} if "number" in types else types


def _one_of(found: Types | None, branches: list[Types | None]) -> Types | None:
    """``found`` with what one of the branches permits. A branch that says nothing permits all that
    is found, or, where nothing is, as much as the others say."""
    said = [types for types in branches if types is not None]
    if not said or (found is not None and len(said) < len(branches)):
        return found
    return _both(found, frozenset().union(*said))
