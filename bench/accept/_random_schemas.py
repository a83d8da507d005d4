"""Random JSON schemas of depth four at most, over every keyword that can be enforced."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
NAMES = ("name", "age", "city", "tags", "unit", "id", "ok", "size", "note")
WORDS = ("red", "green", "blue", "a", "b", "ab", "Lima", "Oslo", "kg", "x1")
PATTERNS = ("^[a-z]{1,6}$", "^[A-Z][a-z]{1,4}$", "^[0-9]{2}-[0-9]{2}$", "^(yes|no)$", "^x[ab]*$")


def keywords(schema: Any) -> Counter[str]:
    """How often each keyword stands in ``schema``."""
    found: Counter[str] = Counter()
    if not isinstance(schema, dict):
        return found
    for key, value in schema.items():
        found[key] += 1
        if key in ("properties", "patternProperties", "$defs", "dependentSchemas"):
            for child in value.values():
                found += keywords(child)
        elif isinstance(value, list) and key not in ("enum", "required"):
            for child in value:
                found += keywords(child)
        elif key not in ("const", "dependentRequired"):
            found += keywords(value)
    return found


class Generator:
    """Schemas for a seed. Sizes are small, so that an answer ends within a few hundred tokens."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._makers: tuple[Callable[[int], Schema], ...] = (
            *(self._object, self._object, self._array, self._array, self._conditional),
            *(self._combined, self._combined, self._combined, self._counted_array),
            *(self._open_object, self._open_object, self._open_object, self._dependent),
            *(self._dependent, self._unevaluated, self._unevaluated),
        )

    def schema(self) -> Schema:
        """A root: an object or a list mostly, sometimes behind a reference."""
        rng = self._rng
        root = rng.choice(self._makers)(3)
        if rng.random() < 0.15:
            return {"$defs": {"root": root}, "$ref": "#/$defs/root"}
        if rng.random() < 0.1:
            root = {"title": "T", "description": "what it is", **root}
        return root

    def value(self, depth: int) -> Schema:
        if depth <= 0 or self._rng.random() < 0.6:
            return self._scalar()
        return self._rng.choice(self._makers)(depth)

    def _scalar(self) -> Schema:
        rng = self._rng
        kind = rng.randrange(9)
        if kind == 0:
            return {"type": rng.choice(["boolean", "null", "integer"])}
        if kind == 1:
            return {"enum": rng.sample([*WORDS, 1, 2.5, None, True], rng.randint(1, 4))}
        if kind == 2:
            return {"const": rng.choice([*WORDS, 7, False, [1, "a"], {"k": "v"}])}
        if kind == 3:
            return {"type": "string", "pattern": rng.choice(PATTERNS)}
        if kind == 4:
            low = rng.randint(0, 3)
            return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 8)}
        return self._number()

    def _number(self) -> Schema:
        rng = self._rng
        kind = rng.choice(["integer", "number"])
        low = rng.randint(-50, 50) if kind == "integer" else round(rng.uniform(-50, 50), 2)
        high = low + rng.randint(2, 200)
        lower = rng.choice(["minimum", "exclusiveMinimum"])
        upper = rng.choice(["maximum", "exclusiveMaximum"])
        return {"type": kind, lower: low, upper: high}

    def _object(self, depth: int) -> Schema:
        rng = self._rng
        names = rng.sample(NAMES, rng.randint(1, 4))
        schema: Schema = {
            "type": "object",
            "properties": {name: self.value(depth - 1) for name in names},
            "required": rng.sample(names, rng.randint(0, len(names))),
        }
        if rng.random() < 0.6:
            schema["additionalProperties"] = False
        return schema

    def _open_object(self, depth: int) -> Schema:
        rng = self._rng
        form = rng.randrange(3)
        if form == 0:
            return {
                "type": "object",
                "patternProperties": {"^[ab]{1,3}$": self._scalar()},
                "additionalProperties": False,
                "maxProperties": 2,
            }
        if form == 1:
            return {
                "type": "object",
                "propertyNames": {"enum": list(rng.sample(NAMES, 3))},
                "additionalProperties": self._scalar(),
                "minProperties": rng.randint(1, 2),
            }
        names = rng.sample(NAMES, 3)
        return {
            "type": "object",
            "properties": {name: self._scalar() for name in names},
            "minProperties": 1,
            "maxProperties": rng.randint(1, 3),
            "additionalProperties": False,
        }

    def _dependent(self, depth: int) -> Schema:
        rng = self._rng
        one, two, three = rng.sample(NAMES, 3)
        schema: Schema = {
            "type": "object",
            "properties": {name: self._scalar() for name in (one, two, three)},
            "additionalProperties": False,
        }
        if rng.random() < 0.5:
            schema["dependentRequired"] = {one: [two]}
        else:
            schema["dependentSchemas"] = {one: {"required": [three]}}
        return schema

    def _unevaluated(self, depth: int) -> Schema:
        rng = self._rng
        if rng.random() < 0.5:
            return {
                "type": "array",
                "prefixItems": [self._scalar() for _ in range(rng.randint(1, 2))],
                "minItems": 1,
                "unevaluatedItems": False,
            }
        one, two = rng.sample(NAMES, 2)
        return {
            "type": "object",
            "properties": {one: self._scalar()},
            "allOf": [{"properties": {two: self.value(depth - 2)}, "required": [two]}],
            "unevaluatedProperties": False,
        }

    def _array(self, depth: int) -> Schema:
        rng = self._rng
        schema: Schema = {"type": "array", "items": self.value(depth - 1)}
        schema["minItems"] = rng.randint(0, 2)
        schema["maxItems"] = schema["minItems"] + rng.randint(0, 2)
        if rng.random() < 0.3:
            schema["prefixItems"] = [self._scalar() for _ in range(rng.randint(1, 2))]
        if rng.random() < 0.5:
            schema["uniqueItems"] = False
        return schema

    def _counted_array(self, depth: int) -> Schema:
        rng = self._rng
        low = rng.randint(0, 2)
        return {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "contains": {"minimum": rng.randint(10, 50)},
            "minContains": low,
            "maxContains": low + rng.randint(0, 2) or 1,
            "maxItems": 4,
        }

    def _combined(self, depth: int) -> Schema:
        rng = self._rng
        form = rng.randrange(4)
        if form == 0:
            return {"anyOf": [self.value(depth - 1) for _ in range(rng.randint(2, 3))]}
        if form == 1:
            name = rng.choice(NAMES)
            branches = []
            for word in rng.sample(WORDS, 2):
                properties = {"kind": {"const": word}, name: self._scalar()}
                branches.append({"properties": properties, "required": ["kind", name]})
            return {"type": "object", "oneOf": branches}
        if form == 2:
            one, two = rng.sample(NAMES, 2)
            return {
                "type": "object",
                "allOf": [
                    {"properties": {one: self._scalar()}, "required": [one]},
                    {"properties": {two: self._scalar()}},
                ],
                "unevaluatedProperties": False,
            }
        return {"type": ["integer", "string"], "not": {"enum": [3, "a"]}, "maxLength": 5}

    def _conditional(self, depth: int) -> Schema:
        rng = self._rng
        one, two = rng.sample(NAMES, 2)
        return {
            "type": "object",
            "properties": {one: {"enum": ["a", "b", 3]}, two: self._scalar()},
            "required": [one],
            "additionalProperties": False,
            "if": {"properties": {one: {"const": "a"}}, "required": [one]},
            "then": {"required": [two]},
            "else": {"properties": {one: {"enum": ["b", 3]}}},
        }
