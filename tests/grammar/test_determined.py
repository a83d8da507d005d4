"""Expressions made deterministic: the same texts and masks, and no more states than needed."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from _random_texts import random_regex

from ninfer_core.contract.errors import InvalidSchema
from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar import automata, parts, regex
from ninfer_grammar_xgrammar.attempts import MANY_POSITIONS, MANY_STATES
from ninfer_grammar_xgrammar.backend import XGrammarCompiler
from ninfer_grammar_xgrammar.ebnf import to_ebnf
from ninfer_grammar_xgrammar.nodes import Grammar
from ninfer_grammar_xgrammar.positions import by_positions
from ninfer_grammar_xgrammar.spelling import Form, spell
from ninfer_grammar_xgrammar.trials.client import Verdict
from tests.grammar.conftest import WHOLE, source

HARD = r"\w{2,5}[a-z]((é{2}\.(?:ab)a?|\w?\wé[ab]|[a-z]{1,4}){1,4}\d{0,3}|[ab]{2}|\(){3}\d{3}"
"""A mask of it took a second when it was not deterministic."""
LETTERS = "aabx-.1fZ() "
PIECES = ("ab", "aba", "xx", "a-", "1f", "(a", "a.", "ZZ", "aaaa", "é", "éa", "aé", "éé", "  ")


def part(pattern):
    return {"kind": "regex", "pattern": pattern, "param": "it"}


def sample(tree, rng, letters):
    """A text of an expression, drawn from its tree."""
    if isinstance(tree, regex.One):
        fitting = [c for c in letters if regex.charset.contains(tree.ranges, ord(c))]
        return rng.choice(fitting or [chr(tree.ranges[0][0])])
    if isinstance(tree, regex.Cat):
        return "".join(sample(item, rng, letters) for item in tree.items)
    if isinstance(tree, regex.Or):
        return sample(rng.choice(tree.items), rng, letters)
    count = rng.randint(tree.low, tree.low + 3 if tree.high is None else tree.high)
    return "".join(sample(tree.item, rng, letters) for _ in range(count))


def near(pattern, rng, count):
    """Texts that match, and such with a letter more, less or changed."""
    # a negated set with an escape in it is read as an ASCII one, which is narrower
    letters = LETTERS + ("" if "[^" in pattern else "é")
    tree = regex.full(pattern)
    for _ in range(count):
        text = sample(tree, rng, letters)
        yield text
        place = rng.randint(0, len(text))
        more = rng.choice(["", rng.choice(letters)])
        yield text[:place] + more + text[place + rng.randint(0, 1) :]


def ends_in(automaton, text):
    state = 0
    for char in text:
        after = [
            target
            for index, target in automaton.moves[state].items()
            if regex.charset.contains(automaton.classes[index], ord(char))
        ]
        if not after:
            return False
        (state,) = after
    return state in automaton.accepting


@pytest.mark.parametrize("seed", range(80))
def test_the_automaton_takes_what_re_matches(seed):
    rng = random.Random(seed)
    pattern = random_regex(rng) if seed else HARD
    found = automata.determined(regex.full(pattern), MANY_STATES)
    if found is None:
        return
    wanted = re.compile(pattern, re.ASCII)
    outcomes = set()
    for text in near(pattern, rng, 30):
        expected = wanted.fullmatch(text) is not None
        assert ends_in(found, text) == expected, (pattern, text)
        outcomes.add(expected)
    assert outcomes == {False, True}


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("(a|b)*abb", 4),  # Aho, Sethi and Ullman, section 3.9
        ("[ab]*a[ab]{3}", 16),  # it remembers four letters
        ("[ab]*a[ab]{5}", 64),
        ("(?:[a-z]+,?)*x", 3),
        (".{0,200}", 201),
        ("a?a?a?", 4),
        ("(?:ab|cb|db)e", 4),
        ("a", 2),
        ("", 1),
    ],
)
def test_no_smaller_automaton_exists(pattern, states):
    found = automata.determined(regex.full(pattern), 8 * MANY_STATES)
    assert len(found.moves) == states
    assert automata.determined(regex.full(pattern), states - 1) is None


def test_what_explodes_is_left_alone():
    assert automata.determined(regex.full("[ab]*a[ab]{22}"), MANY_STATES) is None
    counted = part("(?:a{0,5000}x){9}")
    assert to_ebnf(parts.part_grammar(counted, MANY_STATES)).count("::=") == 1


@pytest.fixture(scope="module")
def library():
    from ninfer_grammar_xgrammar.library import Library

    texts = [*(bytes([value]) for value in range(256)), *(piece.encode() for piece in PIECES), b""]
    return Library(GrammarVocabulary(token_bytes=texts, ends=frozenset({len(texts) - 1})))


def plainly(pattern):
    grammar = Grammar()
    grammar.rules["root"] = spell(regex.full(pattern), Form.PLAIN)
    return to_ebnf(grammar)


def placed(pattern):
    grammar = Grammar()
    wanted = regex.full(pattern)
    grammar.rules["root"] = by_positions(wanted, grammar, Form.PLAIN, None, MANY_POSITIONS)
    return to_ebnf(grammar)


def determined(pattern):
    return to_ebnf(parts.part_grammar(part(pattern), MANY_STATES))


@pytest.mark.parametrize("way", [determined, placed])
@pytest.mark.parametrize("seed", range(30))
def test_masks_are_those_of_the_expression_as_it_stands(library, seed, way):
    """Whatever is known of the end of a rule when it is compiled."""
    rng = random.Random(f"masks {seed}")
    pattern = random_regex(rng)
    other = way(pattern)
    plain = library.compile(plainly(pattern))
    compiled = library.compile(other)
    words = np.zeros((2, 9), dtype=np.uint32)
    for _ in range(3):
        matchers = library.open(plain), library.open(compiled)
        for _ in range(12):
            for row, matcher in zip(words, matchers, strict=True):
                matcher.fill(row)
            assert np.array_equal(*words), (pattern, other)
            bits = np.unpackbits(words[0].view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: 256 + len(PIECES)])
            if not len(allowed):
                break
            likely = [t for t in allowed if t > 255 or chr(t) in LETTERS] or allowed
            token = int(rng.choice(likely))
            assert [matcher.accept_token(token) for matcher in matchers] == [True, True]
            assert len({matcher.is_completed() for matcher in matchers}) == 1


def test_the_hard_one_compiles_and_takes_what_matches(accepts):
    wanted, rng = re.compile(HARD, re.ASCII), random.Random(3)
    outcomes = []
    for text in near(HARD, rng, 20):
        outcomes.append(accepts(part(HARD), text))
        assert outcomes[-1] == (wanted.fullmatch(text) is not None), text
    assert 20 <= sum(outcomes) < 40


class SlowTrial:
    """Of a grammar whose masks take long."""

    def verdict(self):
        return Verdict("slow", work=0.1)


@pytest.mark.parametrize(
    ("slow", "count", "rules"),
    [(1, 7, range(200, 300)), (1, 22, range(20, 30)), (2, 22, range(20, 30))],
)
def test_what_is_too_slow_is_compiled_by_states_or_positions(
    backend, monkeypatch, slow, count, rules
):
    """``slow``: how often a trial says so. Of 22 letters the states are four million."""
    fresh, tried = XGrammarCompiler(backend._vocabulary, backend._trials), []
    real = fresh._trials.begin

    def begin(ebnf, seconds):
        tried.append(ebnf)
        return SlowTrial() if len(tried) <= slow else real(ebnf, seconds)

    monkeypatch.setattr(fresh._trials, "begin", begin)
    wanted = source({"it": part(f"[ab]*a[ab]{{{count}}}")}, WHOLE)
    if slow == 1:
        matcher = fresh.open(fresh.compile(wanted))
        assert matcher.accept(list(b"ab" + b"b" * (count - 2))) == count
        assert not matcher.complete
        assert matcher.accept(list(b"b")) == 1
        assert matcher.complete
        assert matcher.accept(list(b"b")) == 1
        assert not matcher.complete
    else:
        with pytest.raises(InvalidSchema, match="token by token"):
            fresh.compile(wanted)
    assert len(tried) == 2
    assert tried[0].count("::=") == 1
    assert tried[1].count("::=") in rules


def test_patterns_of_a_schema_are_compiled_by_states_when_they_are_slow():
    schema = {"type": "string", "pattern": "^(?:[a-z]+,?)*x$"}
    wanted = {"kind": "json_schema", "schema": schema, "param": "it", "closed": True}
    once, again = (to_ebnf(parts.part_grammar(wanted, states)) for states in (0, MANY_STATES))
    assert again.count("::=") > once.count("::=")
    assert "(=" not in again, "something follows a string"
