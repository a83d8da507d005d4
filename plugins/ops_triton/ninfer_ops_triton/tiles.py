"""How products are cut into programs: measured choices where there are some, a rule elsewhere.

A choice belongs to a weight's shape and format and to what is fused around the product, never to
the number of activation rows: the steps along the columns, their groups and the parts that they are
split into make the bits of a result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.launch import capability, cdiv, multiprocessors, next_power_of_2

BYTES = {"bf16": 2.0, "fp8": 1.0, "q4": 0.53125}
"""Of a weight, in each format; four bits and a scale of 16 for each group of 64."""

LET_GO_BYTES = 20 << 20
"""From this size on a product of a normed stream lets its dependents begin with it."""

MOST_PARTS = 16

RELEASES = ("start", "sums", "end")

RULED = ("release", "dependent")
"""What of a tile stands in no table."""

MOST_ROWS = 32
"""Activation rows of one program."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A program takes ``block_r`` rows of the weight and one of ``split`` parts of its columns, in
    steps of ``block_k`` columns that form ``groups`` sums. While it waits for the kernel before it,
    the weights of its first ``early`` steps come to it, and those of ``ahead`` more steps into the
    L2 cache; both are 0 or a power of two. From two steps on ``early`` is another order of
    products, with bits of its own; four-bit weights and split columns have one at most. Up to eight
    activation rows the compiler gives a thread at most ``registers``, where that is not None, so
    that more programs run side by side.

    ``release`` and ``dependent`` come by a rule (:func:`paced`), not from the table. Programs of
    the kernel after it may begin with these (``start``), when the sums of all of these are done
    (``sums``), or when all have left (``end``): the earlier they come, the less evenly, each where
    a multiprocessor has room first. With ``dependent`` its own may begin before the kernel before
    it is done, where the device can.

    One group has at most two warps: with four, the compiler would take another instruction, with
    bits of its own, for many activation rows.
    """

    block_r: int
    block_k: int
    groups: int
    split: int
    warps: int
    stages: int
    ahead: int = 0
    early: int = 1
    registers: int | None = None
    release: str = "sums"
    dependent: bool = True

    def __post_init__(self) -> None:
        powers = (self.block_r, self.block_k, self.groups, self.warps, self.ahead)
        if self.block_r < 16 or self.groups > 8 or any(size & (size - 1) for size in powers):
            raise OpError(f"{self} is no tile: 16 rows or more, at most 8 groups, powers of two")
        if self.release not in RELEASES:
            raise OpError(f"{self} is no tile: it releases dependents at {', '.join(RELEASES)}")
        if not 1 <= self.split <= MOST_PARTS:
            raise OpError(f"{self} is no tile: columns are split into 1 to {MOST_PARTS} parts")
        if self.early & (self.early - 1) or (self.early > 1 and self.split > 1):
            raise OpError(f"{self} is no tile: early is a power of two, at most 1 of split columns")
        if self.groups == 1 and self.warps > 2:
            raise OpError(f"{self} is no tile: one group has at most 2 warps")

    def first_steps(self, columns: int) -> int:
        """``early``, or less where so many steps are more than all columns."""
        most: int = next_power_of_2(cdiv(columns, self.block_k))
        return min(self.early, most)

    def parts(self, columns: int) -> int:
        """``split``, or less where parts would be empty."""
        steps: int = cdiv(columns, self.block_k)
        parts: int = cdiv(steps, cdiv(steps, self.split))
        return parts


def padded_rows(count: int) -> int:
    """Activation rows that a program computes for ``count``: 8, 16 or 32."""
    return min(MOST_ROWS, max(8, 1 << (count - 1).bit_length()))


@lru_cache(maxsize=4096)
def choose(fusion: str, kind: str, rows: int, columns: int) -> Tile:
    """The tile of ``rows`` outputs over ``columns``. ``fusion`` is ``linear`` (with or without a
    residual), ``norm``, ``swiglu`` (``rows`` counts one half) or ``head``; ``kind`` is a value of
    :data:`ninfer_ops_triton.weights.KINDS`."""
    measured = entry(table_key(fusion, kind, rows, columns, capability()))
    tile = Tile(**measured) if measured else by_rule(fusion, rows, columns)
    return paced(tile, fusion, kind, rows, columns)


def paced(tile: Tile, fusion: str, kind: str, rows: int, columns: int) -> Tile:
    """The tile with ``release`` and ``dependent`` as they pay. Products hold their dependents back,
    but for large ones of a normed stream: mixers follow them, whose few programs bring their state
    meanwhile. Four-bit ones are not begun early, where there is room first."""
    let_go = fusion == "norm" and rows * columns * BYTES[kind] >= LET_GO_BYTES
    return replace(tile, release="start" if let_go else "sums", dependent=kind != "q4")


def table_key(fusion: str, kind: str, rows: int, columns: int, capability: tuple[int, int]) -> str:
    """The name of a choice in ``tiles.json``."""
    return f"sm_{capability[0]}{capability[1]} {fusion} {kind} {rows}x{columns}"


def by_rule(fusion: str, rows: int, columns: int) -> Tile:
    """The choice for a shape that was not measured: four warps side by side along the columns, and
    about three programs for each multiprocessor, by smaller tiles first and by parts then."""
    wanted = 3 * multiprocessors()
    block_r = 32 if fusion != "swiglu" and cdiv(rows, 32) >= wanted else 16
    split = 1
    while cdiv(rows, block_r) * split * 2 <= wanted and split < 8 and columns >= 1024 * split:
        split *= 2
    return Tile(block_r, 256, 4, split, warps=4, stages=3)


def entry(key: str) -> dict[str, Any] | None:
    """What ``tiles.json`` has for a key."""
    return _table().get(key)


@lru_cache
def _table() -> dict[str, dict[str, Any]]:
    text = files("ninfer_ops_triton").joinpath("tiles.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table
