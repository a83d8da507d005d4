"""The fake model: a token is a function of everything before it and of the seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

STOP_TOKEN = 0
CLOSE_TOKENS = (1, 2)
FIRST_PLAIN_TOKEN = 3
EMPTY_STATE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def execute(state: int, tokens: Iterable[int]) -> int:
    """The recurrent state after ``tokens``; order matters."""
    for token in tokens:
        state = _mix(state * 31 + token + 1)
    return state


def next_token(state: int, seed: int, vocab: int, *, may_stop: bool = True) -> int:
    """What the model says after ``state``: STOP_TOKEN or a plain token below ``vocab``."""
    drawn = _mix(state ^ (seed * 0xD1342543DE82EF95)) % vocab
    if drawn in CLOSE_TOKENS or (drawn == STOP_TOKEN and not may_stop):
        return FIRST_PLAIN_TOKEN
    return drawn


def continuation(
    prompt: Sequence[int], seed: int, vocab: int, count: int, *, may_stop: bool = True
) -> list[int]:
    """The first ``count`` tokens after ``prompt``, or fewer when STOP_TOKEN comes first."""
    state = execute(EMPTY_STATE, prompt)
    tokens: list[int] = []
    while len(tokens) < count:
        token = next_token(state, seed, vocab, may_stop=may_stop)
        tokens.append(token)
        if token == STOP_TOKEN:
            break
        state = execute(state, [token])
    return tokens


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
