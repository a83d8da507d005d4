"""Which kept points lie on the path of a prompt, found block by block.

A tree of blocks of :data:`PAGE_TOKENS` tokens, sparse in points. A hash only picks the children
worth comparing; tokens and media are then compared in full, so that a bad hash costs time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from ninfer_core.contract.errors import CacheFault
from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.engine.token_path import Namespace, Piece, TokenPath

T = TypeVar("T", bound=Hashable)
PieceHash = Callable[[Piece], int]


class _Node(Generic[T]):
    """The end of a block. ``tails`` are the points behind it, before the end of the next block: by
    their distance in tokens, then by hash."""

    __slots__ = ("block", "children", "depth", "parent", "tails")

    def __init__(self, parent: _Node[T] | None, block: Piece, depth: int) -> None:
        self.parent = parent
        self.block = block
        self.depth = depth
        self.children: dict[int, list[_Node[T]]] = {}
        self.tails: dict[int, dict[int, list[tuple[Piece, T]]]] = {}


class PrefixIndex(Generic[T]):
    """Items at frontiers of token paths, each at one place."""

    def __init__(self, digest: PieceHash = hash) -> None:
        self._digest = digest
        self._roots: dict[Namespace, _Node[T]] = {}
        self._places: dict[T, tuple[Namespace, _Node[T], Piece, int]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, path: TokenPath, frontier: int, item: T) -> None:
        """Put ``item`` at ``frontier`` of ``path``, ``0 < frontier <= len(path)``."""
        if item in self._places or not 0 < frontier <= len(path):
            raise CacheFault(f"{item} cannot be indexed at {frontier} of {len(path)} tokens")
        node = self._roots.get(path.namespace)
        if node is None:
            node = self._roots[path.namespace] = _Node(None, Piece(b""), 0)
        for number in range(frontier // PAGE_TOKENS):
            block = path.block(number)
            node = self._child(node, block) or self._grow(node, block)
        tail = path.piece(node.depth * PAGE_TOKENS, frontier)
        length = frontier % PAGE_TOKENS
        alike = node.tails.setdefault(length, {}).setdefault(self._digest(tail), [])
        alike.append((tail, item))
        self._places[item] = path.namespace, node, tail, length

    def remove(self, item: T) -> None:
        """Take ``item`` out, and every block that nothing needs any more."""
        namespace, node, tail, length = self._places.pop(item)
        key = self._digest(tail)
        alike = node.tails[length][key]
        alike.remove((tail, item))
        if not alike:
            del node.tails[length][key]
        if not node.tails[length]:
            del node.tails[length]
        while not node.tails and not node.children:
            parent = node.parent
            if parent is None:
                del self._roots[namespace]
                return
            self._prune(parent, node)
            node = parent

    def matches(
        self, path: TokenPath, limit: int, namespace: Namespace | None = None
    ) -> list[tuple[int, T]]:
        """Frontier and item of every point on ``path`` up to ``limit``, ascending. Stops at the
        first block that nobody has kept. ``namespace`` looks in another one than the path's."""
        found: list[tuple[int, T]] = []
        node = self._roots.get(path.namespace if namespace is None else namespace)
        limit = min(limit, len(path))
        while node is not None:
            start = node.depth * PAGE_TOKENS
            for length in sorted(node.tails):
                if start + length <= limit:
                    tail = path.piece(start, start + length)
                    found += [(start + length, item) for item in self._alike(node, length, tail)]
            if start + PAGE_TOKENS > limit:
                break
            node = self._child(node, path.block(node.depth))
        return found

    def namespaces(self) -> Iterator[Namespace]:
        return iter(self._roots)

    def above(self, item: T) -> int:
        """The deepest frontier, at or before that of ``item`` and on its path, at which something
        else stands; 0 for none."""
        return self.nearest(item)[0]

    def nearest(self, item: T) -> tuple[int, list[T]]:
        """That frontier, and what stands there."""
        _, node, piece, length = self._places[item]
        here: _Node[T] | None = node
        while here is not None:
            for distance in sorted(here.tails, reverse=True):
                if distance <= length:
                    alike = self._alike(here, distance, piece.head(distance))
                    others = [other for other in alike if other != item]
                    if others:
                        return here.depth * PAGE_TOKENS + distance, others
            piece, length, here = here.block, PAGE_TOKENS - 1, here.parent
        return 0, []

    def _alike(self, node: _Node[T], length: int, tail: Piece) -> list[T]:
        alike = node.tails[length].get(self._digest(tail), ())
        return [item for kept, item in alike if kept == tail]

    def _child(self, node: _Node[T], block: Piece) -> _Node[T] | None:
        alike = node.children.get(self._digest(block), ())
        return next((child for child in alike if child.block == block), None)

    def _grow(self, node: _Node[T], block: Piece) -> _Node[T]:
        child = _Node(node, block, node.depth + 1)
        node.children.setdefault(self._digest(block), []).append(child)
        return child

    def _prune(self, parent: _Node[T], child: _Node[T]) -> None:
        key = self._digest(child.block)
        parent.children[key].remove(child)
        if not parent.children[key]:
            del parent.children[key]
