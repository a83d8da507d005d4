"""Everything together over shadow memory: whatever happens, everybody reads what they wrote."""

from __future__ import annotations

import collections

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

NUMBER = st.integers(0, 999)


def test_a_state_machine_finds_no_wrong_content(explore, new_world, actions):
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = new_world()

        @rule(action=st.sampled_from(actions), pick=NUMBER, a=NUMBER, b=NUMBER)
        def step(self, action: str, pick: int, a: int, b: int) -> None:
            self.world.step(action, pick, a, b)

        def teardown(self) -> None:
            self.world.close()

    explore(Machine, examples=150, steps=50)


def test_walks_without_a_bug_pass_and_take_every_kind_of_step(walk, actions):
    done: collections.Counter[str] = collections.Counter()
    for seed in range(30):
        done += walk(seed, steps=120)
    special = ("truncation refused", "page demoted", "page restored", "tail copied")
    assert {kind: done[kind] for kind in {*actions, *special} if done[kind] < 5} == {}


@pytest.mark.parametrize("kept", [1, 63, 64, 65, 127, 128, 129, 255])
def test_a_fork_and_its_parent_diverge_at_any_column(new_world, kept):
    world = new_world()
    world.start()
    world.unit(world.running[0], kept, kept, ahead=0)
    world.finish(world.running[0], keep=True)
    record = world.records[0]
    world.fork(record, 0)
    world.fork(record, 0)
    world.resume(record, 0, keep=False)
    for holder in world.running:
        world.unit(holder, 70, 70, ahead=1)
        world.verify()
    assert len({tuple(holder.tokens) for holder in world.running}) == 3
    assert len({tuple(holder.tokens[:kept]) for holder in world.running}) == 1
    world.close()
