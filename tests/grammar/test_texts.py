"""Expressions, numbers, choices and grammars against ``re``, arithmetic and another recogniser."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import pytest
from _random_texts import derives, random_choices, random_grammar, random_regex, to_gbnf

from ninfer_core.contract.errors import InvalidSchema
from ninfer_grammar_xgrammar import automata, numbers, regex
from ninfer_grammar_xgrammar.nodes import Alt, Chars, Loop, Many, Seq, Text
from ninfer_grammar_xgrammar.numbers import Bound
from tests.grammar.test_schemas import drawn


@pytest.mark.parametrize("seed", range(60))
def test_expressions_match_what_re_matches(seed):
    rng = random.Random(seed)
    pattern = random_regex(rng)
    ours, theirs = regex.full(pattern), re.compile(pattern, re.ASCII)
    found = regex.search(pattern)
    letters = "aabx-.1fZ() é"
    for _ in range(40):
        text = "".join(rng.choices(letters, k=rng.randint(0, 7)))
        assert automata.matches(ours, text) == (theirs.fullmatch(text) is not None), (pattern, text)
        assert automata.matches(found, text) == (theirs.search(text) is not None), (pattern, text)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_masks_of_an_expression_allow_matches_it(matcher, seed):
    rng = random.Random(seed)
    pattern = random_regex(rng)
    text = drawn(matcher({"kind": "regex", "pattern": pattern}), rng)
    assert text is not None
    assert re.fullmatch(pattern, text), (pattern, text)


def test_two_expressions_together_and_one_without_another():
    both = automata.combine([regex.search("a"), regex.search("b$")], [regex.search("c")])
    ones = ["ab", "b", "acb", "aab", "ba"]

    def runs(text):
        state = 0
        for char in text:
            row = both.moves[state]
            code = ord(char)
            states = [t for i, t in row.items() for a, z in [*both.classes[i]] if a <= code <= z]
            if not states:
                return False
            (state,) = states
        return state in both.accepting

    assert [text for text in ones if runs(text)] == ["ab", "aab"]


def as_re(node):
    if isinstance(node, Text):
        return re.escape(node.value)
    if isinstance(node, Chars):
        return "[" + "".join(f"\\U{a:08x}-\\U{z:08x}" for a, z in node.ranges) + "]"
    if isinstance(node, Many):
        return f"{as_re(node.chars)}{{{node.low},{'' if node.high is None else node.high}}}"
    if isinstance(node, Seq):
        return "".join(map(as_re, node.items))
    if isinstance(node, Loop):
        return f"(?:{as_re(node.item)})*"
    assert isinstance(node, Alt)
    return f"(?:{'|'.join(map(as_re, node.items))})" if node.items else "(?!)"


def random_decimal(rng):
    size = 10 ** rng.choice([1, 2, 4])
    return Decimal(rng.randint(-size, size)) / 10 ** rng.choice([0, 0, 1, 2, 3])


@pytest.mark.parametrize("seed", range(150))
def test_numbers_between_bounds(seed):
    rng = random.Random(seed)
    low = Bound(random_decimal(rng), rng.random() < 0.5) if rng.random() < 0.8 else None
    high = Bound(random_decimal(rng), rng.random() < 0.5) if rng.random() < 0.8 else None
    kind = rng.choice(["any", "int", "frac"])
    pattern = re.compile(as_re(numbers.bounded(low, high, kind)))
    near = [
        b.value + d for b in (low, high) if b for d in map(Decimal, ("0", "0.01", "-0.01", "1"))
    ]
    for value in [*near, *(random_decimal(rng) for _ in range(12))]:
        text = f"{value:f}".rstrip("0").rstrip(".") if "." in f"{value:f}" else f"{value:f}"
        text = "0" if text == "-0" else text
        inside = low is None or value > low.value or (value == low.value and not low.open)
        inside &= high is None or value < high.value or (value == high.value and not high.open)
        whole = value == value.to_integral_value()
        inside &= {"any": True, "int": whole, "frac": not whole}[kind]
        assert bool(pattern.fullmatch(text)) == inside, (low, high, kind, text)


@pytest.mark.parametrize("seed", range(25))
def test_grammars_against_a_recogniser_of_their_own(matcher, accepts, seed):
    rng = random.Random(seed)
    rules = random_grammar(rng)
    part = {"kind": "grammar", "source": to_gbnf(rules)}
    for _ in range(3):
        text = drawn(matcher(part), rng)
        if text is None:
            continue
        assert derives(rules, text), (part, text)
        place = rng.randint(0, len(text))
        other = text[:place] + rng.choice("ab(1é") + text[place + rng.randint(0, 1) :]
        assert accepts(part, other) == derives(rules, other), (part, other)


def test_spellings_of_gbnf_that_the_library_does_not_know(accepts):
    source = """
    # a comment
    root ::= ws item{,2} tail   # trailing
    ws ::= | " "
    item ::= [a-c\\]] | .
        "!"
    tail ::= ("x" |
       "y")? "\\u00e9\\x21"
    """
    part = {"kind": "grammar", "source": source}
    assert all(
        accepts(part, text) for text in ("é!", " aé!", "a]xé!", " ?!b yé!".replace(" y", "y"))
    )
    assert not any(accepts(part, text) for text in ("", "abcé!", "  é!", "dé!"))


@pytest.mark.parametrize("seed", range(5))
def test_choices(accepts, seed):
    choices = random_choices(random.Random(seed))
    part = {"kind": "choice", "values": choices}
    assert all(accepts(part, text) for text in choices)
    assert not accepts(part, choices[0] + "x")
    assert not accepts(part, choices[0][:-1])


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"kind": "regex", "pattern": "a)"}, "invalid_regex"),
        ({"kind": "regex", "pattern": r"a\b"}, "unsupported_regex"),
        ({"kind": "regex", "pattern": r"(a)\1"}, "unsupported_regex"),
        ({"kind": "regex", "pattern": "((a{1,99}){1,99}){1,99}"}, "unsupported_regex"),
        ({"kind": "grammar", "source": "root ::= other"}, "invalid_grammar"),
        ({"kind": "grammar", "source": "rule ::= [a"}, "invalid_grammar"),
        ({"kind": "grammar", "source": "root ::= <think>"}, "unsupported_grammar"),
        ({"kind": "grammar", "source": "root ::= root"}, "unsatisfiable_grammar"),
        ({"kind": "grammar", "source": 'root ::= ("a"{1,99} "b"){1,999}'}, "unsupported_grammar"),
        ({"kind": "choice", "values": []}, "invalid_choice"),
        ({"kind": "choice", "values": ["a", 1]}, "invalid_choice"),
        ({"kind": "choice", "values": [""]}, "invalid_choice"),
    ],
)
def test_faults_are_told_apart(accepts, part, code):
    with pytest.raises(InvalidSchema) as caught:
        accepts({**part, "param": "response_format"}, "a")
    assert caught.value.code == code
    assert caught.value.param == "response_format"


def test_an_expression_that_explodes_as_an_automaton_is_no_trouble(accepts):
    """[ab]*a[ab]{22} has four million states when it is made deterministic."""
    part = {"kind": "regex", "pattern": "[ab]*a[ab]{22}"}
    assert accepts(part, "b" * 30 + "a" + "b" * 22)
    assert not accepts(part, "b" * 50)
