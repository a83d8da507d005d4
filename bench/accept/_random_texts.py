"""Random expressions, choices and grammars, and a recogniser of its own for the grammars."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

WORDS = ("yes", "no", "maybe", "red", "green", "Lima", 'say "x"', "a\\b", "1.5", "ß", "two words")
_CLASSES = ("[a-z]", "[A-Z]", r"\d", "[0-9a-f]", "[^a-z\\s]", r"\w", "[ab]", ".")


def random_regex(rng: random.Random, depth: int = 2) -> str:
    """An expression that ``re`` and the engine read alike, with bounded repetitions."""
    parts = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        if kind < 0.45:
            atom = rng.choice(_CLASSES)
        elif kind < 0.75 or depth == 0:
            atom = rng.choice(["a", "x", "-", r"\.", "ab", r"\(", "é"])
            atom = f"(?:{atom})" if len(atom) > 1 and not atom.startswith("\\") else atom
        else:
            branches = (random_regex(rng, depth - 1) for _ in range(rng.randint(1, 3)))
            atom = f"({'|'.join(branches)})"
        low = rng.randint(0, 2)
        parts.append(atom + rng.choice(["", "", "?", f"{{{low},{low + 3}}}", f"{{{low + 1}}}"]))
    return "".join(parts)


def random_choices(rng: random.Random) -> list[str]:
    return rng.sample(WORDS, rng.randint(1, 6))


@dataclass(frozen=True)
class Symbol:
    """``kind``: text | set | rule | times. ``low`` and ``high`` count a ``times``."""

    kind: str
    text: str = ""
    inner: Symbol | None = None
    low: int = 0
    high: int = 0


Rules = dict[str, tuple[tuple[Symbol, ...], ...]]


def random_grammar(rng: random.Random) -> Rules:
    """Rules without endless recursion: each names later ones only, but for one balanced pair."""
    names = ["root", "one", "two", "three"][: rng.randint(2, 4)]
    rules: Rules = {}
    for index, name in enumerate(names):
        later = names[index + 1 :]
        rules[name] = tuple(
            tuple(_symbol(rng, later) for _ in range(rng.randint(1, 3)))
            for _ in range(rng.randint(1, 3))
        )
    last = names[-1]
    nested = (Symbol("text", "("), Symbol("rule", last), Symbol("text", ")"))
    rules[last] = ((Symbol("set", "abc"),), nested, *rules[last])
    return rules


def _symbol(rng: random.Random, later: list[str]) -> Symbol:
    kind = rng.random()
    if kind < 0.35 and later:
        return Symbol("rule", rng.choice(later))
    if kind < 0.55:
        return Symbol("set", rng.choice(["abc", "0123456789", "-+", "xyz_"]))
    if kind < 0.75:
        inner = _symbol(rng, later) if later else Symbol("set", "abc")
        if inner.kind != "times":
            low = rng.randint(0, 2)
            return Symbol("times", inner=inner, low=low, high=low + rng.randint(1, 2))
    return Symbol("text", rng.choice(["if ", "ab", ", ", '"', "\\", "é", "\n"]))


def to_gbnf(rules: Rules) -> str:
    lines = []
    for name, branches in rules.items():
        shown = [" ".join(_show(symbol) for symbol in branch) for branch in branches]
        lines.append(f"{name} ::= {' | '.join(shown)}  # {len(branches)} branches")
    return "\n".join(lines)


def _show(symbol: Symbol) -> str:
    if symbol.kind == "rule":
        return symbol.text
    if symbol.kind == "set":
        return "[" + symbol.text.replace("-", "\\-") + "]"
    if symbol.kind == "times" and symbol.inner is not None:
        low = "" if symbol.low == 0 else str(symbol.low)
        return f"({_show(symbol.inner)}){{{low},{symbol.high}}}"
    escaped = symbol.text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def derives(rules: Rules, text: str) -> bool:
    """Whether ``root`` derives the whole of ``text``: all ends of all symbols, remembered."""

    @cache
    def ends(symbol: Symbol, start: int) -> frozenset[int]:
        if symbol.kind == "text":
            found = text.startswith(symbol.text, start)
            return frozenset({start + len(symbol.text)} if found else ())
        if symbol.kind == "set":
            return frozenset({start + 1} if text[start : start + 1] in tuple(symbol.text) else ())
        if symbol.kind == "rule":
            return frozenset(e for branch in rules[symbol.text] for e in after(branch, start))
        assert symbol.inner is not None
        reached, here = set(), {start}
        for count in range(symbol.high + 1):
            reached |= here if count >= symbol.low else set()
            here = {end for place in here for end in ends(symbol.inner, place)}
        return frozenset(reached)

    def after(branch: tuple[Symbol, ...], start: int) -> set[int]:
        here = {start}
        for symbol in branch:
            here = {end for place in here for end in ends(symbol, place)}
        return here

    return len(text) in ends(Symbol("rule", "root"), 0)
