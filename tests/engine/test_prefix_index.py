"""The index against plain comparison of token lists, with a good hash and with a useless one."""

from __future__ import annotations

import random
from array import array

import pytest

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.engine.prefix_index import PrefixIndex
from ninfer_core.engine.token_path import TokenPath

SPACE = ("template", None)


def path(tokens, space=SPACE, media=()):
    return TokenPath(space, array("i", tokens).tobytes(), media)


def useless(piece) -> int:
    return 0


@pytest.fixture(params=[hash, useless], ids=["hash", "constant"])
def index(request):
    return PrefixIndex(request.param)


def grown(rng: random.Random, count: int) -> list[list[int]]:
    """Sequences that share beginnings of any length."""
    made = [[rng.randrange(3) for _ in range(300)]]
    while len(made) < count:
        base = rng.choice(made)
        keep = rng.choice([0, 1, 63, 64, 65, 127, 128, 129, rng.randrange(300)])
        made.append([*base[:keep], *(rng.randrange(3) for _ in range(300 - keep))])
    return made


@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_is_what_a_comparison_finds(index, seed):
    rng = random.Random(seed)
    sequences, kept = grown(rng, 12), {}
    for step in range(160):
        if kept and rng.random() < 0.35:
            item = rng.choice(list(kept))
            index.remove(item)
            del kept[item]
        tokens = rng.choice(sequences)
        frontier = rng.choice([1, 63, 64, 65, 128, 191, 192, 256, rng.randrange(1, 300)])
        index.add(path(tokens), frontier, step)
        kept[step] = tokens[:frontier]
        prompt, limit = rng.choice(sequences), rng.randrange(300)
        found = index.matches(path(prompt), limit)
        expected = {i for i, k in kept.items() if len(k) <= limit and prompt[: len(k)] == k}
        assert {item for _, item in found} == expected
        assert [f for f, _ in found] == sorted(len(kept[item]) for _, item in found)
        item = rng.choice(list(kept))
        others = [len(k) for i, k in kept.items() if i != item and kept[item][: len(k)] == k]
        assert index.above(item) == max(others, default=0)
    for item in list(kept):
        index.remove(item)
    assert len(index) == 0
    assert list(index.namespaces()) == [], "blocks that nobody needs are kept"


def test_namespaces_are_apart(index):
    tokens = list(range(70))
    index.add(path(tokens, ("template", "mine")), 66, "a")
    for space in (SPACE, ("template", "yours"), ("other", "mine")):
        assert index.matches(path(tokens, space), 69) == []
    assert index.matches(path(tokens, ("template", "mine")), 69) == [(66, "a")]


def test_media_count_where_they_start(index):
    tokens = [5] * 140
    index.add(path(tokens, media=((70, b"cat"),)), 69, "before")
    index.add(path(tokens, media=((70, b"cat"),)), 130, "behind")
    for media, found in (
        (((70, b"cat"),), ["before", "behind"]),
        (((70, b"dog"),), ["before"]),
        (((71, b"cat"),), ["before"]),
        ((), ["before"]),
    ):
        assert [item for _, item in index.matches(path(tokens, media=media), 139)] == found
    assert index.above("behind") == 69


def test_an_item_has_one_place_within_its_path(index):
    index.add(path([1, 2]), 2, "a")
    for tokens, frontier, item in (([1, 2], 1, "a"), ([1, 2], 3, "b"), ([1, 2], 0, "b")):
        with pytest.raises(EngineFailure, match="cannot be indexed"):
            index.add(path(tokens), frontier, item)


def test_a_cold_prompt_costs_one_block():
    looked = []

    def counting(piece):
        looked.append(piece)
        return hash(piece)

    index = PrefixIndex(counting)
    for number in range(50):
        index.add(path([number] * 640), 640, number)
    looked.clear()
    assert index.matches(path([99] * 100_000), 99_999) == []
    assert len(looked) == 1, "the path of a prompt is left at the first block that nobody kept"
    looked.clear()
    assert index.matches(path([7] * 100_000), 99_999) == [(640, 7)]
    assert len(looked) <= 12


def test_digests_name_beginnings():
    whole, other = path([1, 2, 3, 4]), path([1, 2, 9])
    assert whole.digests([2]) == other.digests([2])
    assert whole.digests([3])[3] != other.digests([3])[3]
    assert path([1, 2], ("template", "x")).digests([2]) != whole.digests([2])
    assert path([1, 2], media=((1, b"a"),)).digests([1]) == whole.digests([1])
    assert path([1, 2], media=((1, b"a"),)).digests([2]) != whole.digests([2])
    assert path([1, 2]).extended([3, 4]).digests([2, 3, 4]) == whole.digests([2, 3, 4])
