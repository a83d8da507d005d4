"""How products of many activation rows are cut: measured choices where there are some, else a rule.

Programs of more weight rows read the activations less often, through the L2 cache like the weights;
programs that share the groups of a step are many, and so even, where those are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ninfer_ops_triton.launch import capability, cdiv, multiprocessors
from ninfer_ops_triton.tiles import BYTES, Tile, entry, table_key

STEP_BYTES = 160 << 10
"""Of shared memory for the steps of a program that are on their way."""

SHARED_BYTES = 228 << 10
"""Of a multiprocessor, of which each program takes 1 KiB more than it asks for."""

EXCHANGE_BYTES = 100 << 10
"""What a multiprocessor could read while programs that share groups exchange their sums, for each
doubling of those; assumed, not measured."""

ALONE_BYTES = 160 << 10
"""What it could read while a program begins and ends, where none runs beside it; assumed too."""

FEW_WARPS = 3.8
"""On a multiprocessor: fewer wait for one another's steps, where groups are shared."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a tile goes by the activation rows of a program: its weight rows, the ``share``
    programs between which the groups of a step are dealt out, its warps and stages. With ``near``
    activations come by way of the L1 cache, in which programs side by side may find them.

    None of it makes bits: a group's chain of products stays one warp's own, with the same
    instruction, whoever computes it, and groups of several programs are added in the order of one.
    """

    block_r: int
    share: int
    warps: int
    stages: int
    near: bool = False


def cut_for(tile: Tile, n: int, fusion: str, kind: str, rows: int, columns: int) -> Cut:
    """The cut for ``n`` activation rows: the table's where there is one, else the tile's own up to
    8 and a rule's from there on."""
    measured = entry(f"{table_key(fusion, kind, rows, columns, capability())} {n}")
    if measured:
        return Cut(**measured)
    if n > 8:
        return cut_by_rule(tile, n, fusion, kind, rows, columns)
    return Cut(tile.block_r, 1, tile.warps, tile.stages)


def warps_of(tile: Tile, share: int) -> int:
    """Warps of a program that takes one of ``share`` parts of the groups: two for one group, and
    else no more than groups, for what is more would compute the same again."""
    groups = tile.groups // share
    return min(tile.warps, groups if groups > 1 else 2)


@lru_cache(maxsize=4096)
def cut_by_rule(tile: Tile, n: int, fusion: str, kind: str, rows: int, columns: int) -> Cut:
    """The cut of the least cost (:class:`_Load`) for ``n`` > 8 activation rows.

    Decoded four-bit weights leave no registers for more rows, nor for as many as 128 with 32
    activation rows.
    """
    own = Cut(tile.block_r, 1, tile.warps, tile.stages)
    halves = 2 if fusion == "swiglu" else 1
    if kind == "q4":
        crowded = tile.block_r * halves * n > 2048 and fusion != "linear" and tile.block_r > 16
        return Cut(tile.block_r // 2, 1, tile.warps, tile.stages) if crowded else own
    loads = _loads(tile, n, rows, columns, halves, halves * BYTES[kind])
    best = min(loads, key=_Load.cost, default=None)
    return own if best is None else best.cut


def _loads(
    tile: Tile, n: int, rows: int, columns: int, halves: int, row_bytes: float
) -> Iterator[_Load]:
    """Of cuts that are possible and leave no multiprocessor idle that the tile would not."""
    most = max(tile.block_r, 64 // halves)
    parts = tile.parts(columns)
    for size in (tile.block_r << doubled for doubled in range(3)):
        tiles = cdiv(rows, size) * parts
        for share in (1 << doubled for doubled in range(4)):
            few = size > tile.block_r and 10 * tiles * share < 9 * multiprocessors()
            if size > most or share > tile.groups or few:
                continue
            # Programs are even without it, where they are many.
            if share > 1 and tiles > 2 * multiprocessors():
                continue
            columns_read = columns / parts / share
            for stages in range(max(4, tile.stages), 2, -1):
                cut = Cut(size, share, warps_of(tile, share), stages)
                load = _Load(
                    cut, tiles * share, size * row_bytes + 2 * n, columns_read, tile.block_k / share
                )
                if load.possible():
                    yield load


class _Load:
    """What a cut asks of a multiprocessor: ``programs`` of them all, each of which reads
    ``column_bytes`` in each of ``columns`` columns, ``block_k`` a step."""

    def __init__(
        self, cut: Cut, programs: int, column_bytes: float, columns: float, block_k: float
    ) -> None:
        self.cut, self.programs = cut, programs
        self.each = programs / multiprocessors()
        self.read, self.step = column_bytes * columns, column_bytes * block_k
        room = SHARED_BYTES // (self.step * (cut.stages - 1) + 1024)
        # Programs are taken to use all registers that they may.
        self.side_by_side = min(8 // cut.warps, room)

    def possible(self) -> bool:
        enough = self.cut.share == 1 or self.each * self.cut.warps >= FEW_WARPS
        return enough and self.step * (self.cut.stages - 1) <= STEP_BYTES

    def cost(self) -> tuple[float, float]:
        """Bytes in whose time it is done, the busiest catching up with twice the pace of all; then
        fewest on their way, without what activations take."""
        busiest = cdiv(self.programs, multiprocessors()) * self.read
        exchange = EXCHANGE_BYTES * (self.cut.share.bit_length() - 1)
        alone = ALONE_BYTES * self.each if self.side_by_side == 1 and self.each > 1 else 0.0
        under_way = min(self.each, self.side_by_side) * (self.cut.stages - 1)
        return (busiest + self.each * self.read) / 2 + exchange + alone, -under_way
