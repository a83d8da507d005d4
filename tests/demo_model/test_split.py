"""The split: by operands alone, disjoint, and the same whatever the wording."""

from __future__ import annotations

from random import Random

import pytest

from ninfer_demo_model.tasks import EXTRA, FAMILIES, draw, split_of
from ninfer_demo_model.tasks.numbers import arithmetic

SPLIT = [family for family in FAMILIES + EXTRA if family != "talk"]


@pytest.mark.parametrize("family", SPLIT)
def test_no_operands_are_on_both_sides(family):
    rng = Random(family)
    train = {draw(family, rng, "train").key for _ in range(150)}
    heldout = {draw(family, rng, "heldout").key for _ in range(150)}
    assert not train & heldout


def test_the_wording_does_not_matter():
    keys = {}
    rng = Random(3)
    for _ in range(20_000):
        draft = arithmetic(rng)
        keys.setdefault(draft.key, set()).add(draft.messages[0]["content"])
    assert max(len(prompts) for prompts in keys.values()) >= 4


def test_a_sum_has_one_side_whatever_its_order():
    rng = Random(5)
    drawn = [draw("arithmetic", rng, "heldout") for _ in range(500)]
    sums = [case for case in drawn if case.variant == "add"]
    assert sums
    for case in sums:
        _, low, high = case.key.split("|")
        assert int(low) <= int(high)


def test_variants_share_the_split_of_their_family():
    rng = Random(9)
    for _ in range(100):
        assert split_of("recall", draw("recall_bound", rng, "heldout").key) == "heldout"
        assert split_of("arithmetic", draw("wide_sum", rng, "train").key) == "train"


def test_about_one_part_in_eight_is_held_out():
    sides = [split_of("copy", str(number)) for number in range(8000)]
    assert 800 < sides.count("heldout") < 1200


def test_a_seed_repeats():
    def drawn(seed):
        rng = Random(seed)
        return [draw(family, rng) for family in FAMILIES]

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)


def test_unknown_families_and_empty_splits_are_named():
    with pytest.raises(ValueError, match="family 'cope' is unknown"):
        draw("cope", Random(0))
    rng = Random(0)
    sides = {split_of("talk", draw("talk", rng, "any").key) for _ in range(300)}
    for missing in {"train", "heldout"} - sides:
        with pytest.raises(ValueError, match="no case"):
            draw("talk", rng, missing)
