"""The frame of the acceptance stages: steps that fail, that are left out, that come too late."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def stage(accept_scripts, tmp_path):
    from _stage import Stage

    def make(limit=100.0, only=()):
        return Stage("tried", tmp_path, limit, frozenset(only), {"seed": 3})

    return make


def written(stage):
    return json.loads((stage.out / "tried.json").read_text())


def test_a_step_that_raises_fails_the_stage_and_the_next_one_runs(stage, capsys) -> None:
    made = stage()
    made.run("good", lambda: {"passed": True, "found": 7})
    assert written(made)["passed"]
    made.run("bad", lambda: 1 // 0)
    made.run("told", lambda: {"rate": 0.25})
    made.table()
    report = written(made)
    assert not report["passed"]
    assert list(report["steps"]) == ["good", "bad", "told"]
    assert report["steps"]["bad"]["error"].startswith("ZeroDivisionError")
    assert "1 // 0" in report["steps"]["bad"]["trace"]
    assert report["conditions"]["packages"]["ninfer-core"]
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert lines[0] == "tried: FAILED"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["good", "passed"], ["bad", "FAILED"], ["told", "-"],
    ]  # fmt: skip
    assert "found 7" in lines[1]


def test_steps_are_chosen_by_a_part_of_their_name(stage) -> None:
    made = stage(only=["par"])
    for name in ("parity", "answers"):
        made.run(name, lambda: {"passed": True})
    assert list(written(made)["steps"]) == ["parity"]


def test_no_step_starts_after_the_limit_and_that_is_not_a_pass(stage) -> None:
    made = stage(limit=-1.0)
    made.run("late", lambda: pytest.fail("started"))
    assert written(made)["steps"]["late"]["not_run"] == "no time left"
    assert written(made)["steps"]["late"]["passed"] is None


def test_a_command_that_does_not_end_is_told_from_one_that_fails(accept_scripts) -> None:
    import sys

    from _stage import outcome_of

    assert outcome_of([sys.executable, "-c", "print(3); exit(4)"], 60) == (4, "3\n")
    sleeps = "import time; print('began', flush=True); time.sleep(60)"
    assert outcome_of([sys.executable, "-c", sleeps], 2)[0] is None
