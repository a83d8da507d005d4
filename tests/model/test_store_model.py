"""A share of ``bench/accept/store_model.py``: walks that agree with the model, bugs that do not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.model.stores.bugs import BUGS, noticed
from tests.model.stores.machine import KINDS, StoreMachine


def test_the_stores_agree_with_their_model_after_each_step() -> None:
    done: Counter[str] = Counter()
    for seed in range(10):
        machine = StoreMachine(seed)
        for _ in range(120):
            machine.step()
        machine.close()
        done += machine.done
    assert not {kind: done[kind] for kind in KINDS if not done[kind]}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_noticed(bug) -> None:
    assert noticed(bug, 12, 200) is not None
