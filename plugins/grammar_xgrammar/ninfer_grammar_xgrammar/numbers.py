"""Numbers between bounds, as texts without an exponent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

from ninfer_grammar_xgrammar import charset
from ninfer_grammar_xgrammar.nodes import (
    EMPTY,
    NEVER,
    Chars,
    Many,
    Node,
    alt,
    optional,
    seq,
)

INT_DIGITS = 18
"""Digits of a whole number without bounds: any such number is a signed 64-bit one."""
FRACTION_DIGITS = 17
"""Digits after the point: more than binary64 tells apart."""
MAX_DIGITS = 40
"""Digits that a bound may have on either side of the point."""

_DIGITS = charset.of("0123456789")
_DIGIT = Chars(_DIGITS)


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of an interval; ``open``: the value itself lies outside."""

    value: Decimal
    open: bool


def any_integer() -> Node:
    return seq(optional(seq("-")), _whole(INT_DIGITS))


def any_number() -> Node:
    exponent = seq(Chars(charset.of("eE")), optional(Chars(charset.of("+-"))), Many(_DIGIT, 1, 2))
    return seq(any_integer(), optional(_fraction()), optional(exponent))


def any_fractional() -> Node:
    """Numbers that are not whole, without an exponent."""
    return seq(optional(seq("-")), _whole(INT_DIGITS), ".", _nonzero())


def bounded(low: Bound | None, high: Bound | None, kind: str) -> Node:
    """``kind``: any | int | frac (not whole). The empty language if nothing lies between.

    A reader rounds a text with a point to binary64: what lies outside as a number stays outside.
    """
    if kind != "int":
        low = None if low is None else _apart(low, math.inf)
        high = None if high is None else _apart(high, -math.inf)
    if low is not None and high is not None and low.value > high.value:
        return NEVER
    branches: list[Node] = []
    if low is None or low.value < 0:
        # mirrored: x in (0, -low], from what is nearest to zero on
        near = Bound(Decimal(0), True)
        if high is not None and high.value <= 0:
            near = _tighter(near, Bound(-high.value, high.open), lower=True)
        far = None if low is None else Bound(-low.value, low.open)
        branches.append(seq("-", _positive(near, far, kind)))
    if high is None or high.value > 0 or (high.value == 0 and not high.open):
        near = Bound(Decimal(0), False)
        if low is not None and low.value >= 0:
            near = _tighter(near, low, lower=True)
        branches.append(_positive(near, high, kind))
    return alt(*branches)


def _apart(bound: Bound, towards: float) -> Bound:
    """An open bound at the next number of binary64, where texts nearer by would round to the bound
    itself."""
    if not bound.open:
        return bound
    value = float(bound.value)
    with localcontext(prec=3 * MAX_DIGITS):
        digit = Decimal(1).scaleb(-FRACTION_DIGITS)
        nearest = bound.value.quantize(digit, ROUND_FLOOR if towards > 0 else ROUND_CEILING)
        nearest += digit if towards > 0 else -digit
    if float(nearest) != value:
        return bound
    return Bound(Decimal(repr(math.nextafter(value, towards))), False)


def _tighter(a: Bound, b: Bound, *, lower: bool) -> Bound:
    if a.value != b.value:
        return max(a, b, key=lambda x: x.value) if lower else min(a, b, key=lambda x: x.value)
    return a if a.open else b


def _positive(low: Bound, high: Bound | None, kind: str) -> Node:
    """Numbers of at least zero between the bounds."""
    whole_low, rest_low = _split(low.value)
    low_number = int(whole_low)
    if high is None:
        branches = [_at(whole_low, rest_low, low.open, None, False, kind)]
        branches.append(seq(_integers(low_number + 1, None), _tail(kind)))
        return alt(*branches)
    whole_high, rest_high = _split(high.value)
    high_number = int(whole_high)
    if low_number > high_number:
        return NEVER
    if low_number == high_number:
        return _at(whole_low, rest_low, low.open, rest_high, high.open, kind)
    branches = [_at(whole_low, rest_low, low.open, None, False, kind)]
    if low_number + 1 <= high_number - 1:
        branches.append(seq(_integers(low_number + 1, high_number - 1), _tail(kind)))
    branches.append(_at(whole_high, "", False, rest_high, high.open, kind))
    return alt(*branches)


def _split(value: Decimal) -> tuple[str, str]:
    whole, _, rest = f"{value:f}".partition(".")
    return whole, rest.rstrip("0")


def _tail(kind: str) -> Node:
    if kind == "int":
        return EMPTY
    return seq(".", _nonzero()) if kind == "frac" else optional(_fraction())


def _fraction() -> Node:
    return seq(".", Many(_DIGIT, 1, FRACTION_DIGITS))


def _nonzero() -> Node:
    """Digits, not all of them zero."""
    return seq(
        Many(Chars(charset.of("0")), 0, FRACTION_DIGITS // 2),
        Chars(charset.of("123456789")),
        Many(_DIGIT, 0, FRACTION_DIGITS // 2),
    )


def _whole(digits: int) -> Node:
    return alt("0", seq(Chars(charset.of("123456789")), Many(_DIGIT, 0, digits - 1)))


def _at(whole: str, low: str, low_open: bool, high: str | None, high_open: bool, kind: str) -> Node:
    """``whole`` with a fraction between digits ``low`` and ``high`` (None: up to one)."""
    branches: list[Node] = []
    zero_low = not low
    bare = zero_low and not low_open and not (high == "" and high_open)
    if kind != "frac" and bare:
        branches.append(seq(whole))
    if kind != "int":
        digits = _between(low, low_open, high, high_open, FRACTION_DIGITS, kind == "frac")
        branches.append(seq(whole, ".", digits))
    return alt(*branches)


def _between(
    low: str, low_open: bool, high: str | None, high_open: bool, left: int, nonzero: bool
) -> Node:
    """At least one digit d1 d2 ... with 0.low <= 0.d1d2... <= 0.high."""
    if not low and not low_open and high is None:
        return _nonzero_up_to(left) if nonzero else Many(_DIGIT, 1, max(1, left))
    branches: list[Node] = []
    first = int(low[0]) if low else 0
    last = 9 if high is None else int(high[0]) if high else 0
    if first > last:
        return NEVER
    for digit in range(first, last + 1):
        on_low, on_high = digit == first, high is not None and digit == last
        rest_low, rest_low_open = (low[1:], low_open) if on_low else ("", False)
        rest_high = high[1:] if on_high and high is not None else None
        zero_so_far = nonzero and digit == 0
        if not on_low and not on_high:
            continue
        branches.append(
            _digit_then(
                digit, rest_low, rest_low_open, rest_high, high_open and on_high, left, zero_so_far
            )
        )
    middle = list(range(first + 1, last if high is not None else last + 1))
    if middle:
        branches.append(
            seq(Chars(charset.of("".join(map(str, middle)))), Many(_DIGIT, 0, max(0, left - 1)))
        )
    return alt(*branches)


def _digit_then(
    digit: int, low: str, low_open: bool, high: str | None, high_open: bool, left: int, zero: bool
) -> Node:
    """``digit``, and more digits or none between what is left of the bounds."""
    ends = not low and not low_open and not (high == "" and high_open) and not zero
    more: Node = NEVER
    if left > 1 and not (high == "" and high_open):
        more = _between(low, low_open, high, high_open, left - 1, zero)
        if high == "":
            more = NEVER if low or low_open or zero else Many(Chars(charset.of("0")), 1, 3)
    return seq(str(digit), optional(more) if ends else more)


def _nonzero_up_to(left: int) -> Node:
    return seq(
        Many(Chars(charset.of("0")), 0, max(0, left // 2)),
        Chars(charset.of("123456789")),
        Many(_DIGIT, 0, max(0, left // 2)),
    )


def _integers(low: int, high: int | None) -> Node:
    """Whole numbers of at least zero, low to high."""
    if high is None:
        width = len(str(low))
        branches = [_fixed(str(low), "9" * width)]
        if width < INT_DIGITS:
            more = Many(_DIGIT, width, INT_DIGITS - 1)
            branches.append(seq(Chars(charset.of("123456789")), more))
        return alt(*branches)
    branches = []
    for width in range(len(str(low)), len(str(high)) + 1):
        start = max(low, 10 ** (width - 1) if width > 1 else 0)
        stop = min(high, 10**width - 1)
        if start <= stop:
            branches.append(_fixed(str(start), str(stop)))
    return alt(*branches)


def _fixed(low: str, high: str) -> Node:
    """Numbers of one width, digit by digit."""
    if not low:
        return EMPTY
    rest = len(low) - 1
    if low == "0" * len(low) and high == "9" * len(high):
        return Many(_DIGIT, len(low), len(low))
    if low[0] == high[0]:
        return seq(low[0], _fixed(low[1:], high[1:]))
    branches: list[Node] = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != "0" * rest:
        branches.append(seq(low[0], _fixed(low[1:], "9" * rest)))
        first += 1
    if high[1:] != "9" * rest:
        branches.append(seq(high[0], _fixed("0" * rest, high[1:])))
        last -= 1
    if first <= last:
        middle = Chars(charset.of("".join(map(str, range(first, last + 1)))))
        branches.append(seq(middle, Many(_DIGIT, rest, rest)) if rest else middle)
    return alt(*branches)
