"""Ways to launch the kernels of a round, which ``tune_round.py`` compares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ninfer_ops_triton import launch, tiles
from ninfer_ops_triton.launch import cdiv, next_power_of_2
from ninfer_ops_triton.tiles import Tile

MEBI = 1 << 20


@dataclass(frozen=True)
class Product:
    """What a tile is for, as :func:`ninfer_ops_triton.tiles.choose` takes it."""

    fusion: str
    kind: str
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """Bytes of the weight."""
        stored = self.rows * (2 if self.fusion == "swiglu" else 1)
        return int(stored * self.columns * tiles.BYTES[self.kind])

    @property
    def behind_a_mixer(self) -> bool:
        """Other products that add read an MLP's columns, more than twice as many as rows."""
        return self.fusion == "linear" and self.columns <= 2 * self.rows


Change = Callable[[Tile, Product], Tile]
"""A tile as it would run to the one that does."""


@dataclass(frozen=True)
class Variant:
    """``change`` applies to every product; ``table`` is in place of the measured tiles."""

    name: str
    change: Change = lambda tile, product: tile
    dependent: bool = True
    shared_memory: int = launch.SHARED_MEMORY
    table: Path | None = None


def holding(least: int) -> Change:
    """Products of so many bytes and more hold their dependents."""
    return lambda tile, product: replace(tile, release="sums" if product.size >= least else "start")


def begun_early(**changes: Any) -> Change:
    return lambda tile, product: replace(tile, dependent=True, **changes)


def early_behind_products(tile: Tile, product: Product) -> Tile:
    """Begun early but behind mixers, whose programs take some multiprocessors alone."""
    return replace(tile, dependent=not product.behind_a_mixer, ahead=0)


def late_behind_products(tile: Tile, product: Product) -> Tile:
    return replace(tile, dependent=product.behind_a_mixer, ahead=0)


def normed_let_go(tile: Tile, product: Product) -> Tile:
    """What follows normed products are mixers, whose first loads need nothing of them."""
    return replace(tile, release="start" if product.fusion == "norm" else "sums")


def released_last(tile: Tile, product: Product) -> Tile:
    """Begun when all programs of the product before have left, which is less than a boundary."""
    return replace(tile, dependent=True, ahead=0, release="end")


WHOLE_BYTES, FIRST_BYTES = 128 << 10, 64 << 10
"""Most weights of a program that are there before its inputs: where these are all, and where more
follow through a loop that takes shared memory as well."""


def whole_early(*fusions: str, groups: int | None = None, release: str | None = None) -> Change:
    """All weights of a program ahead of its wait, or as many first steps as fit; of products with
    these fusions, where some are named, in as many groups as given."""

    def change(tile: Tile, product: Product) -> Tile:
        if fusions and product.fusion not in fusions:
            return tile
        tile = replace(tile, release=release or tile.release)
        if product.fusion == "head" or product.kind == "q4" or tile.split > 1:
            return tile
        if groups is not None and tile.block_k // groups >= 32:
            tile = replace(tile, groups=groups, warps=groups)
        halves = 2 if product.fusion == "swiglu" else 1
        step = int(tile.block_r * tile.block_k * tiles.BYTES[product.kind]) * halves
        steps = next_power_of_2(cdiv(product.columns, tile.block_k))
        early = steps
        while early > 1 and early * step > (WHOLE_BYTES if early == steps else FIRST_BYTES):
            early //= 2
        return replace(tile, early=early, ahead=0) if early > 1 else tile

    return change


VARIANTS = [
    Variant("as it is"),
    Variant("no dependent launch", dependent=False),
    Variant("all held", lambda tile, product: replace(tile, release="sums")),
    Variant("all begun early, released last", released_last),
    Variant("released last", lambda tile, product: replace(tile, release="end")),
    Variant("all but normed held", normed_let_go),
    Variant("held from 20 MiB", holding(20 * MEBI)),
    Variant("all begun early", begun_early()),
    Variant("all begun early, nothing ahead", begun_early(ahead=0)),
    Variant("begun early behind products, nothing ahead", early_behind_products),
    Variant("products late but behind mixers", late_behind_products),
    Variant("no product begun early", lambda tile, product: replace(tile, dependent=False)),
    Variant("nothing asked ahead", lambda tile, product: replace(tile, ahead=0)),
    Variant("first weights early", lambda tile, product: replace(tile, early=1)),
    Variant("whole weights early", whole_early()),
    Variant("whole weights early, let go", whole_early(release="start")),
    Variant("whole weights of products that add early", whole_early("linear")),
    Variant("whole weights of normed products early", whole_early("norm", "swiglu")),
    Variant("whole weights early in eight groups", whole_early(groups=8)),
    Variant("whole weights early in eight groups, let go", whole_early(groups=8, release="start")),
    Variant("half of the memory shared", shared_memory=50),
]


@contextmanager
def applied(variant: Variant) -> Iterator[None]:
    """Launches as the variant has them; puts everything back."""
    paced, supports, shared, table = (
        tiles.paced, launch.supports_dependent_launch, launch.SHARED_MEMORY, tiles._table
    )  # fmt: skip

    def changed(tile: Tile, fusion: str, kind: str, rows: int, columns: int) -> Tile:
        product = Product(fusion, kind, rows, columns)
        return variant.change(paced(tile, fusion, kind, rows, columns), product)

    tiles.paced = changed
    if not variant.dependent:
        launch.supports_dependent_launch = lambda: False
    launch.SHARED_MEMORY = variant.shared_memory
    if variant.table is not None:
        found = json.loads(variant.table.read_text(encoding="utf-8"))
        tiles._table = lambda: found  # type: ignore[assignment]
    _forget()
    try:
        yield
    finally:
        tiles.paced, launch.supports_dependent_launch = paced, supports
        launch.SHARED_MEMORY, tiles._table = shared, table
        _forget()


def _forget() -> None:
    tiles.choose.cache_clear()
    launch._ready.clear()
