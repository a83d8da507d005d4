"""Sets of characters as sorted, disjoint, inclusive ranges of code points without surrogates."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]

ALL: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))


def charset(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted and joined; surrogates are no characters and fall out."""
    return intersect(_joined(ranges), ALL)


def of(text: str) -> Ranges:
    """The characters of ``text``."""
    return charset((ord(c), ord(c)) for c in text)


def complement(ranges: Ranges) -> Ranges:
    result, start = [], 0
    for low, high in ranges:
        if start < low:
            result.append((start, low - 1))
        start = high + 1
    if start <= 0x10FFFF:
        result.append((start, 0x10FFFF))
    return intersect(tuple(result), ALL)


def intersect(left: Ranges, right: Ranges) -> Ranges:
    result, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            result.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(result)


def union(*sets: Ranges) -> Ranges:
    return _joined(pair for ranges in sets for pair in ranges)


def minus(left: Ranges, right: Ranges) -> Ranges:
    return intersect(left, complement(right))


def size(ranges: Ranges) -> int:
    return sum(high - low + 1 for low, high in ranges)


def contains(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        elif low <= high:
            result.append((low, high))
    return tuple(result)
