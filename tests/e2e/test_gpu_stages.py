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


FAILING = """
import sys

def test_good():
    pass

def test_lost():
    print("lines.cu:117: Assertion failed", file=sys.stderr)
    raise RuntimeError("begin " + "x" * 20000 + " end")

def test_behind_it():
    raise RuntimeError("lost before " + "y" * 20000 + " at last")
"""


def test_the_first_failure_of_a_suite_is_told_nearly_whole(stage, tmp_path) -> None:
    from gpu_ops import FIRST, LATER, run_suite

    suite = tmp_path / "test_failing.py"
    suite.write_text(FAILING)
    facts = run_suite(stage(), [str(suite)])
    assert (facts["ran"], facts["failures"], facts["passed"]) == (3, 2, False)
    first, second = facts["errors"]
    assert [first["id"].rpartition(":")[2], second["id"].rpartition(":")[2]] == [
        "test_lost", "test_behind_it",
    ]  # fmt: skip
    assert "test_failing.py:9: in test_lost" in first["error"]
    assert "begin x" in first["error"]
    assert first["error"].rstrip().endswith("x end")
    assert sum(FIRST) < len(first["error"]) < sum(FIRST) + 40
    assert first["stderr"].startswith("lines.cu:117")
    assert "lost before y" in second["error"]
    assert second["error"].rstrip().endswith("y at last")
    assert sum(LATER) < len(second["error"]) < sum(LATER) + 40
    assert "stderr" not in second


STUB = """
import json, pathlib, sys, time
options = sys.argv[1:]
stage = options[options.index("--stage") + 1]
out = pathlib.Path(options[options.index("--out") + 1])
print("said", stage, flush=True)
report = {"stage": stage, "steps": {"one": {"passed": stage != "bad", "rate": 7.0}}}
(out / "report.json").write_text(json.dumps(report))
if stage == "hangs":
    time.sleep(60)
sys.exit(3 if stage == "bad" else 0)
"""


@pytest.fixture
def all_stages(accept_scripts, tmp_path, monkeypatch):
    import gpu_all

    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    monkeypatch.setattr(gpu_all, "GPU", stub)

    def run(phases, limit, expected=1.0):
        from argparse import Namespace

        made = [
            (together, tuple(gpu_all.Part(name, ("--stage", name), expected) for name in names))
            for together, names in phases
        ]
        monkeypatch.setattr(gpu_all, "PHASES", tuple(made))
        asked = Namespace(
            out=tmp_path / "out", limit=limit, only=[], tiny=False, device="cpu", commit="", seed=0
        )
        code = gpu_all.run(asked)
        return code, json.loads((tmp_path / "out" / "all.json").read_text())

    return run


def test_stages_beside_a_failing_one_are_all_in_one_file(all_stages, capsys) -> None:
    code, report = all_stages([(True, ["good", "bad"]), (False, ["last"])], 60.0)
    assert code == 1
    assert not report["passed"]
    assert {name: part["exit_code"] for name, part in report["parts"].items()} == {
        "good": 0, "bad": 3, "last": 0,
    }  # fmt: skip
    assert report["parts"]["bad"]["output"].strip() == "said bad"
    assert "output" not in report["parts"]["good"]
    assert report["parts"]["last"]["report"]["steps"]["one"]["rate"] == 7.0
    assert "bad " in capsys.readouterr().out


def test_a_stage_that_hangs_is_ended_in_time_and_no_later_one_begins(all_stages) -> None:
    code, report = all_stages([(False, ["hangs"]), (False, ["late"])], 10.0)
    assert code == 1
    assert report["parts"]["hangs"]["exit_code"] != 0
    assert report["parts"]["hangs"]["report"]["stage"] == "hangs"
    assert "said hangs" in report["parts"]["hangs"]["output"]
    assert report["seconds"] < 9.0


def test_parts_side_by_side_leave_time_for_those_behind_them(all_stages, monkeypatch) -> None:
    import gpu_all

    monkeypatch.setattr(gpu_all, "SPARE", 1.0)
    code, report = all_stages([(True, ["hangs", "a"]), (False, ["b"])], 12.0, expected=6.0)
    assert code == 1
    assert report["parts"]["hangs"]["exit_code"] != 0
    assert report["parts"]["b"]["passed"]


def test_all_stages_passed(all_stages) -> None:
    code, report = all_stages([(True, ["a", "b"])], 60.0)
    assert (code, report["passed"]) == (0, True)


def test_decode_after_long_prompts_is_held_against_short_ones(all_stages, monkeypatch) -> None:
    import gpu_all

    shares = {"decode, 9b bf16": {"share 1": 0.8}, "long, 9b bf16": {"share far": 0.6}}

    def ran(whole, together, parts, reserved):
        whole.parts |= {
            name: {"passed": True, "exit_code": 0, "seconds": 1.0, "report": {"steps": {"a": made}}}
            for name, made in shares.items()
        }

    monkeypatch.setattr(gpu_all.Whole, "phase", ran)
    code, report = all_stages([(False, ["any"])], 60.0)
    assert code == 1
    assert report["parts"]["far against near"]["passed"] is False
    shares["long, 9b bf16"]["share far"] = 0.7
    code, report = all_stages([(False, ["any"])], 60.0)
    assert code == 0
    assert report["parts"]["far against near"]["shares"] == {
        "9b": {"share 1": 0.8, "share far": 0.7}
    }
