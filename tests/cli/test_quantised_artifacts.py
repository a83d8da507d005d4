"""`ninfer convert --weights`, and the errors that `inspect` and `verify` show."""

from __future__ import annotations

import pytest

Q4 = "q4_g64_fp16"


@pytest.mark.parametrize("name", ["q4", Q4])
def test_short_and_long_names_write_the_same(ninfer, checkpoint, tmp_path, name):
    out = tmp_path / "out.ninfer"
    done = ninfer("convert", str(checkpoint), "-o", str(out), "--weights", name)
    assert done.code == 0
    assert f"recipe {Q4}, text; 1 tensors" in done.out
    summary = ninfer("inspect", str(out), "--json").json
    assert [tensor["format"] for tensor in summary["tensors"]] == [Q4]


def test_errors_are_shown(ninfer, checkpoint, tmp_path):
    out = tmp_path / "out.ninfer"
    report = ninfer("convert", str(checkpoint), "-o", str(out), "--weights", "q4", "--json").json
    summary = ninfer("inspect", str(out), "--json").json
    [tensor] = summary["tensors"]
    rms = tensor["rms_relative_error"]
    assert rms == report["max_rms_relative_error"] == summary["quality"]["max_rms_relative_error"]
    assert summary["formats"][0]["max_rms_relative_error"] == rms
    # w[4, 8] counts from 1: the step of a row is a seventh of its last value.
    values = [list(range(1 + 8 * row, 9 + 8 * row)) for row in range(4)]
    errors = [abs(round(v / (row[-1] / 7)) * row[-1] / 7 - v) for row in values for v in row]
    exact = (sum(e * e for e in errors) / sum(v * v for row in values for v in row)) ** 0.5
    assert rms == pytest.approx(exact, rel=0.01)
    assert tensor["max_abs_error"] == pytest.approx(max(errors), rel=0.01)
    text = ninfer("inspect", str(out), "--tensors").out
    assert f"text.w [4x8] {Q4}: rms error {rms:.3g}, max {tensor['max_abs_error']:.3g}" in text
    assert f"worst rms error {rms:.3g}" in ninfer("verify", str(out)).out
    assert "  tensor  " not in ninfer("inspect", str(out)).out


def test_what_is_unknown_is_named(ninfer, checkpoint, tmp_path):
    out = tmp_path / "out.ninfer"
    for flag in ("--weights", "--head"):
        done = ninfer("convert", str(checkpoint), "-o", str(out), flag, "int3")
        assert done.code == 2
        assert "'int3' is unknown" in done.err
        assert "q4_g64_fp16" in done.err
        assert not out.exists()
