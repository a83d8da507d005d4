"""Forms that are built to explode, by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

Source = tuple[str, str, Any]
"""Name, and kind and value of a ``ResponseFormat``; of the kind ``tools`` the value is a mode of
``ToolChoice`` and the tools."""


def hostile(seed: int = 0, drawn: int = 40) -> Iterator[Source]:
    """Every written source, and ``drawn`` ones that are put together at random from ``seed``."""
    for kind, family in (
        ("json_schema", {**_deep(), **_wide(), **_counted(), **_recursive(), **_logic()}),
        ("regex", _expressions()),
        ("grammar", _grammars()),
        ("choice", _choices()),
        ("tools", _tools()),
    ):
        for name, value in family.items():
            yield f"{kind} {name}", kind, value
    rng = random.Random(f"hostile {seed}")
    for number in range(drawn):
        kind = rng.choice(("json_schema", "regex", "grammar"))
        yield f"{kind} drawn {number}", kind, _DRAWN[kind](rng)


def _nest(levels: int, wrap: Callable[[Any], Any], core: Any) -> Any:
    for _ in range(levels):
        core = wrap(core)
    return core


def _members(count: int, schema: Any, **rest: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": schema for i in range(count)}, **rest}


def _deep() -> dict[str, Any]:
    return {
        "60 objects": _nest(60, lambda s: _members(1, s), {}),
        "60 arrays": _nest(60, lambda s: {"items": s}, {}),
        "60 anyOf": _nest(60, lambda s: {"anyOf": [s, {"type": "null"}]}, {"type": "string"}),
        "60 allOf": _nest(60, lambda s: {"allOf": [s, {"minLength": 1}]}, {"type": "string"}),
        "60 not": _nest(60, lambda s: {"not": s}, {"type": "string"}),
        "60 if": _nest(60, lambda s: {"if": {"type": "null"}, "else": s}, {}),
        "4 levels of 4 objects": _nest(4, lambda s: _members(4, s), {"type": "integer"}),
        "300 objects": _nest(300, lambda s: _members(1, s), {}),
        "3000 arrays": _nest(3000, lambda s: {"items": s}, {}),
    }


def _wide() -> dict[str, Any]:
    text = {"type": "string"}
    names = [f"p{i}" for i in range(500)]
    return {
        "400 patterns": _members(400, {"type": "string", "pattern": "^[a-z]+[0-9]*$"}),
        "500 optional": _members(500, text),
        "500 required": _members(500, text, required=names),
        "60 and others": _members(60, text, additionalProperties={"type": "integer"}),
        "3000 optional": _members(3000, text),
        "50000 optional": _members(50_000, text),
        "enum of 4000": {"enum": [f"value {i}" * 3 for i in range(4_000)]},
        "enum of 30000": {"enum": [f"value {i}" * 3 for i in range(30_000)]},
        "enum of 200000 numbers": {"enum": list(range(200_000))},
        "enum of objects": {"enum": [{"a": i, "b": [i] * 20} for i in range(2_000)]},
        "one text of 900000": {"const": "ab" * 450_000},
        "200 anyOf of objects": {"anyOf": [_members(20, {"const": i}) for i in range(200)]},
    }


def _counted() -> dict[str, Any]:
    return {
        "1000 arrays of 1000": {"type": "array", "maxItems": 1000, "items": _array(1000, {})},
        "three times 100": _array(100, _array(100, _array(100, {"type": "integer"}))),
        "text of 16384": {"type": "string", "minLength": 16_000, "maxLength": 16_384},
        "pattern and length": {"type": "string", "pattern": "[ab]*a[ab]{13}", "maxLength": 50},
        "pattern far back": {"type": "string", "pattern": "[ab]*a[ab]{13}"},
        "scattered sets, 100": {"type": "string", "pattern": r"^(\W\w){0,100}$"},
        "scattered sets, 20": {"type": "string", "pattern": r"^(\W\w){0,20}$"},
        "scattered sets without": {
            "type": "string",
            "not": {"pattern": r"(\w\W){3}"},
            "maxLength": 60,
        },
        "patterns at once": {"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(12)]},
        "1000 members": {"type": "object", "minProperties": 1000, "maxProperties": 1024},
        "counted names": _members(40, {}, minProperties=20, maxProperties=21),
        "contains 500": {"contains": {"type": "null"}, "minContains": 500, "maxContains": 600},
        "contains and prefix": {
            "prefixItems": [{"type": ["null", "integer"]}] * 60,
            "contains": {"type": "null"},
            "minContains": 30,
            "maxContains": 31,
        },
        "bounds of 40 digits": {"minimum": -(10**39), "maximum": 10**39 + 1, "type": "integer"},
        "items 10**9": {"type": "array", "minItems": 10**9},
    }


def _array(most: int, items: Any) -> dict[str, Any]:
    return {"type": "array", "maxItems": most, "items": items}


def _recursive() -> dict[str, Any]:
    ref = {"$ref": "#/$defs/n"}
    doubling = {f"d{i}": _members(2, {"$ref": f"#/$defs/d{i + 1}"}) for i in range(40)}
    merged = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(40)
    }
    chosen = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(40)
    }
    return {
        "trees": {
            "$defs": {"n": {"anyOf": [_array(9, ref), {"additionalProperties": ref}]}},
            **ref,
        },
        "itself": {"$ref": "#"},
        "itself within anyOf": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "itself within not": {"not": {"$ref": "#"}},
        "doubling members": {"$defs": {**doubling, "d40": {}}, "$ref": "#/$defs/d0"},
        "doubling allOf": {"$defs": {**merged, "d40": {}}, "$ref": "#/$defs/d0"},
        "doubling anyOf": {"$defs": {**chosen, "d40": {}}, "$ref": "#/$defs/d0"},
        "two at a time": {
            "properties": {"a": {"$ref": "#"}, "b": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}},
            "type": "object",
        },
        "chain of 5000": {
            "$defs": {f"c{i}": {"$ref": f"#/$defs/c{i + 1}"} for i in range(5_000)},
            "$ref": "#/$defs/c0",
        },
    }


def _logic() -> dict[str, Any]:
    pairs = [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]
    return {
        "product of 9 times 9": {"allOf": pairs},
        "oneOf of 30": {"oneOf": [{"required": [f"a{i}", f"b{i}"]} for i in range(30)]},
        "oneOf of texts": {"oneOf": [{"pattern": f"a{{{i}}}"} for i in range(30)]},
        "not a product": {"not": {"allOf": pairs}},
        "40 dependent": {"dependentRequired": {f"k{i}": [f"k{i + 1}"] for i in range(40)}},
        "12 dependent schemas": {
            "dependentSchemas": {f"k{i}": {"minProperties": i} for i in range(12)}
        },
        "unevaluated of 9": {
            "anyOf": [_members(i, {}) for i in range(9)],
            "unevaluatedProperties": False,
        },
        "pattern names": {
            "patternProperties": {f"a.{{{i}}}b": {"minimum": i} for i in range(4)},
            "type": "object",
        },
    }


def _expressions() -> dict[str, str]:
    return {
        "far back": "[ab]*a[ab]{22}",
        "counted thrice": "((a{1,50}){1,50}){1,50}",
        "optional pairs": "(ab?){0,250}c",
        "wide and counted": "(.{1,20}x){10}",
        "stars": "((((a*)*)*)*)*b",
        "pairs of pluses": "(x+x+)+y",
        "same alternatives": "(a|a|a)*b",
        "a?a?a?": "a?" * 200 + "a" * 200,
        "300 alternatives": "(" + "|".join("a" * i for i in range(1, 300)) + ")*",
        "many dots": "(.*a){30}",
        "wide sets": "[\u0001-\uffff]{1000}",
        "other sets": "([^a]{1,9}[^b]){50}",
        "5000 groups": "(" * 5000 + "a" + ")" * 5000,
        "one text of 200000": "ab" * 100_000,
        "10**9": "a{1000000000}",
    }


def _grammars() -> dict[str, str]:
    chain = "".join(f'r{i} ::= "a" r{i + 1} | r{i + 1} "b"\n' for i in range(1500))
    full = "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60))
    return {
        "counted": 'root ::= ("a" | "b" "c"){200,400}',
        "counted twice": 'root ::= (("a"{1,60} "b"){1,60})',
        "ambiguous": 'root ::= root root | "a" | ""',
        "ambiguous sets": "root ::= (root root root | [a-z] | [a-m] | [^q])?",
        "stars": 'root ::= ((("a"*)*)*)* "b"',
        "left": 'root ::= root "a" | root "b" | "c"',
        "hidden left": 'root ::= e root "a" | "c"\ne ::= "" | "x" e',
        "chain of 1500": f'root ::= r0\n{chain}r1500 ::= "c"',
        "doubling of 60": f'root ::= r0\n{full}r60 ::= "c" | "d"',
        "20000 rules": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(20_000)),
        "palindromes": 'root ::= [ab] root [ab] | "a" root "a" | "b" root "b" | ""',
        "5000 groups": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000,
        "one text of 200000": 'root ::= "' + "ab" * 100_000 + '"',
        "dots": "root ::= (.{1,40} .){1,40}",
    }


def _choices() -> dict[str, list[str]]:
    return {
        "4000": [f"the answer is {i}" for i in range(4_000)],
        "100000": [str(i) for i in range(100_000)],
        "long": ["ab" * 500 + str(i) for i in range(250)],
        "one of 1000000": ["a" * 1_000_000],
        "beginnings": ["a" * i for i in range(1, 700)],
    }


def _tools() -> dict[str, tuple[str, list[dict[str, Any]]]]:
    text, pattern = {"type": "string"}, {"type": "string", "pattern": "[ab]*a[ab]{13}"}
    return {
        "128 of 40 offered": ("auto", _functions(128, _members(40, text))),
        "128 of 40 demanded": ("required", _functions(128, _members(40, text))),
        "20 strict of 400": ("required", _functions(20, _members(400, text), strict=True)),
        "one of 5000 names": ("auto", _functions(1, _members(5_000, text))),
        "names of 10000": ("auto", _functions(4, {"properties": {"n" * 10_000: text}})),
        "strict patterns": ("auto", _functions(60, _members(9, pattern), strict=True)),
        "60 deep": ("required", _functions(3, _nest(60, lambda s: _members(1, s), {}))),
    }


def _functions(count: int, parameters: Any, **rest: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", **parameters}
    return [
        {"type": "function", "function": {"name": f"f{i}", "parameters": parameters, **rest}}
        for i in range(count)
    ]


def _drawn_schema(rng: random.Random, depth: int = 0) -> Any:
    inner = [_drawn_schema(rng, depth + 1) for _ in range(rng.randint(2, 6))] if depth < 3 else [{}]
    size = rng.choice((3, 30, 300))
    return rng.choice(
        (
            lambda: {"allOf": inner},
            lambda: {"anyOf": inner},
            lambda: {"oneOf": inner},
            lambda: {"not": inner[0]},
            lambda: _members(size, inner[0], minProperties=size // 2),
            lambda: {"prefixItems": inner, "contains": inner[-1], "maxContains": size},
            lambda: _array(size, inner[0]),
            lambda: {"type": "string", "pattern": _drawn_regex(rng), "maxLength": size},
            lambda: {"patternProperties": {_drawn_regex(rng): s for s in inner}},
            lambda: {"if": inner[0], "then": inner[-1], "unevaluatedItems": False},
            lambda: {"dependentSchemas": {f"k{i}": s for i, s in enumerate(inner)}},
        )
    )()


def _drawn_regex(rng: random.Random, depth: int = 0) -> str:
    if depth == 4:
        return rng.choice(("a", "[ab]", ".", "[^a]", "b"))
    parts = [_drawn_regex(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    joined = rng.choice(("", "|")).join(parts)
    return f"({joined})" + rng.choice(("", "*", "+", "?", "{1,9}", "{0,40}", "{7}"))


def _drawn_grammar(rng: random.Random) -> str:
    count = rng.choice((2, 6, 40))

    def item() -> str:
        one = rng.choice((f"r{rng.randrange(count)}", '"a"', '""', "[a-z]", "[^a]", "."))
        return one + rng.choice(("", "", "*", "+", "?", "{0,30}"))

    def side() -> str:
        return " ".join(item() for _ in range(rng.randint(1, 5)))

    rules = (f"r{i} ::= {side()} | {side()} | [a-f]" for i in range(count))
    return "\n".join(("root ::= r0", *rules))


_DRAWN: dict[str, Callable[[random.Random], Any]] = {
    "json_schema": _drawn_schema,
    "regex": _drawn_regex,
    "grammar": _drawn_grammar,
}
