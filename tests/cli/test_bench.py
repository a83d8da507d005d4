"""`ninfer bench`: options, what it counts, and a whole run on the CPU."""

from __future__ import annotations

import json
import math
import sys

import pytest
from typer.testing import CliRunner

from ninfer_core.engine.round_timings import RoundTiming
from ninfer_core.plugins import Selection, load_plugins
from ninfer_ops_triton.bench.command import app, batches
from ninfer_ops_triton.bench.drive import Run, Stream, prompts
from ninfer_ops_triton.bench.figures import figures, percentile, roofline_share
from ninfer_ops_triton.bench.peer import measure_peer
from ninfer_ops_triton.bench.table import _drafts
from ninfer_ops_triton.bench.traffic import Traffic, traffic_of
from ninfer_qwen3_5.geometry.artifact import Geometry, write_geometry
from tests.model.test_geometry import TINY
from tests.model.test_geometry_drafters import drafter

VECTORS = 4 * (9 * 64 + 3 * (128 * 4 + 4 + 4 + 16) + 2 * 32)
"""fp32: two norms a layer and the last one; convolution, decay, bias and norm of three delta nets;
norms of queries and keys."""
MATRICES = 3 * (200 * 64 + 64 * 64) + 384 * 64 + 64 * 128 + 4 * (2 * 96 * 64 + 64 * 96)
"""Three delta nets (128 + 64 + 4 + 4 rows in, 64 out), one attention (256 + 64 + 64), four MLPs."""
ROWS = 3 * (200 + 64) + 384 + 64 + 4 * (192 + 64)


@pytest.fixture(scope="module")
def host():
    return load_plugins(Selection())


@pytest.fixture
def bench(host):
    """Invoke the command in this process."""

    def run(*args):
        done = CliRunner().invoke(app, list(args), obj=host)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    return run


@pytest.mark.parametrize(
    ("recipe", "kv", "expected"),
    [
        ("bf16", "bf16", Traffic(2 * MATRICES + VECTORS, 2 * 64 * 300, 128, 14592, 256)),
        ("fp8", "int8", Traffic(MATRICES + 2 * ROWS + VECTORS, 66 * 300, 66, 14592, 136)),
    ],
)
def test_traffic_of_a_geometry_by_hand(tmp_path, host, recipe, kv, expected):
    """State: three layers of 4 x 16 x 16 x 4 bytes and 3 rows of 128 channels in two bytes. Keys
    and values: one layer of 2 x 2 x 32 values in 16 or 8.5 bits."""
    path = tmp_path / "tiny.ninfer"
    write_geometry(path, "tiny", TINY, Geometry(recipe), 300)
    assert traffic_of(path, host, kv, 300) == expected


def test_a_tied_table_is_read_as_head_and_by_rows(tmp_path, host):
    path = tmp_path / "tiny.ninfer"
    write_geometry(path, "tiny", TINY | {"tie_word_embeddings": True}, Geometry("bf16"), 320)
    made = traffic_of(path, host, "bf16", 320)
    assert (made.head, made.embedding_row) == (2 * 64 * 320, 2 * 64)


def test_stored_weights_are_counted_as_stored(host):
    """The demo model is bf16 throughout: 2 bytes for an element of a matrix, 4 for any other."""
    from ninfer_core.artifact import open_artifact
    from ninfer_demo_model.source import ARTIFACT

    made = traffic_of(ARTIFACT, host, "bf16", 10**9)
    with open_artifact(ARTIFACT) as artifact:
        shapes = [binding.shape for binding in artifact.bindings("text")]
    expected = sum(math.prod(shape) * (2 if len(shape) == 2 else 4) for shape in shapes)
    assert made.layers + made.head == expected


def test_bytes_of_a_round_by_hand():
    moved = Traffic(layers=1000, head=500, embedding_row=10, state=70, kv_token=3)
    assert moved.of_round(4, 99.5).to_json() == {
        "weights": 1540, "state": 560, "kv": 1206, "total": 3306,
    }  # fmt: skip


def stream(first, arrivals):
    made = Stream(handle=None, first=first)
    made.arrivals = arrivals
    return made


def test_figures_by_hand():
    """Rounds of 10 ms and one of 30; the arrivals before 1.0 and after 1.06 do not count."""
    early = [(0.5, 2), *((1.0 + at, 4 + n) for n, at in enumerate((0.0, 0.01, 0.02, 0.05, 0.06)))]
    late = [(at + 0.001, n - 3) for at, n in early[1:-1]] + [(1.2, 90)]
    timing = RoundTiming(2, True, 1.0, 2.0, 3.0, 4.0, 100.0)
    others = (
        RoundTiming(1, True, 50.0, 50.0, 50.0, 50.0, 50.0),
        RoundTiming(2, False, 70.0, 70.0, 70.0, 70.0, 70.0),
    )
    run = Run(100, (stream(0.2, early), stream(0.4, late)), 1.0, 1.06, (*others, timing))
    traffic = Traffic(layers=10**6, head=0, embedding_row=0, state=0, kv_token=0)
    made = figures(run, traffic)
    assert made["ttft_ms"] == {"p50": 300.0, "max": 400.0}
    assert made["prefill_tokens_per_second"] == 500.0
    assert made["rounds"] == 3
    assert made["round_ms"] == {"p50": 10.0, "p99": 30.0}
    assert made["gap_ms"] == {"p50": 10.0, "p99": 30.0}
    assert made["decode_tokens_per_second"] == 200.0
    assert made["decode_tokens_per_second_mean"] == round(4 / 0.06 + 3 / 0.05, 1)
    assert made["host_us"] == {"engine": 1, "submit": 2, "post": 3, "output": 4, "host": 10}
    assert made["device_wait_us"] == 100.0
    assert made["mean_context"] == pytest.approx(100 + (6 + 2.5) / 2, abs=0.05)
    assert made["bytes_per_round"]["total"] == 10**6
    assert roofline_share(made, 2e8) == 0.5
    assert roofline_share(made, None) is None


def test_figures_of_a_run_without_a_round():
    made = figures(Run(10, (stream(0.1, [(1.0, 1)]),), 2.0, 2.0, ()), None)
    assert made["rounds"] == 0
    for field in ("round_ms", "gap_ms", "decode_tokens_per_second", "host_us", "device_wait_us"):
        assert made[field] is None
    assert roofline_share(made, 1e9) is None


def test_tokens_of_drafts_count_in_rates():
    """Four rounds of 10 ms; one stream takes 3, 1, 2 and 2 tokens, the other one each time."""
    first = [(1.0 + 0.01 * n, tokens) for n, tokens in enumerate((1, 4, 5, 7, 9))]
    second = [(at + 0.001, n) for n, (at, _) in enumerate(first)]
    run = Run(100, (stream(0.2, first), stream(0.4, second)), 1.0, 1.05, ())
    made = figures(run, None, drafting=True)
    assert made["tokens_per_round"] == 1.5
    assert made["decode_tokens_per_second"] == 300.0
    assert figures(run, None)["decode_tokens_per_second"] == 200.0


def test_what_drafts_cost_is_told_in_words():
    costs = {"plain": 1.0, "verify": [1.0, 1.5, 2.25], "draft": [0.0, 0.5, 0.75]}
    told = _drafts({"backend": "dflash", "tokens": 2, "costs_ms": {"4": costs}})
    assert told == [
        "drafts: dflash, 2 a round at most",
        "a round of 4 rows: plain 1.000 ms, verifying 2 drafts 2.250 ms, making them 0.750 ms",
    ]
    assert _drafts(None) == []


def test_a_geometry_is_measured_with_its_drafter(tmp_path):
    path = tmp_path / "tiny.ninfer"
    write_geometry(path, "tiny", TINY, Geometry("bf16"), 320, {"dflash": drafter(False)})
    host = load_plugins(Selection(requested=("spec_dflash",)))
    args = f"{path} --device cpu --batch 1,2 --prompt 16 --rounds 6 --json --spec dflash"
    done = CliRunner().invoke(app, [*args.split(), "--draft-tokens", "7"], obj=host)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["setting"]["draft"] == {"backend": "dflash", "tokens": 7}
    for run in report["runs"]:
        assert run["tokens_per_round"] >= 1
        assert run["rounds"] >= 6
    plain = CliRunner().invoke(app, args.replace("--json", "").split(), obj=host)
    assert "drafts: dflash, 7 a round at most" in plain.stdout


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentile_is_a_value_that_was_measured(share, value):
    assert percentile(list(range(100, 0, -1)), share) == value


def test_prompts_differ_and_repeat():
    made = prompts(3, 40, 1000, 5)
    assert made == prompts(3, 40, 1000, 5) != prompts(3, 40, 1000, 6)
    assert len({tuple(row) for row in made}) == 3
    assert all(125 <= token < 875 for row in made for token in row)


def test_one_object_of_a_whole_run(bench):
    args = "demo --device cpu --batch 1,2 --prompt 16,30 --new 8 --json".split()
    done = bench(*args)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["model"], report["devices"]) == ("demo", ["cpu"])
    assert report["setting"] == {
        "prompts": [16, 30], "rounds": 256, "prefill_chunk": 1024, "kv_format": "fp32",
        "activations": {"asked": "auto", "matrices": 33, "a8": 0},
        "max_context": 8192, "max_concurrency": 2,
    }  # fmt: skip
    assert report["read_bandwidth"] is None
    assert report["peers"] == []
    assert report["memory"]["bytes"]["weights"] > 0
    assert report["load_seconds"] > 0
    assert {"date", "python", "versions", "devices"} <= report["conditions"].keys()
    cuts = [(run["prompt_tokens"], run["batch"]) for run in report["runs"]]
    assert cuts == [(16, 1), (16, 2), (30, 1), (30, 2)]
    for run in report["runs"]:
        assert run["new_tokens"] == 8
        assert 1 <= run["rounds"] <= 7
        assert 0 < run["ttft_ms"]["p50"] <= run["ttft_ms"]["max"]
        assert 0 < run["round_ms"]["p50"] <= run["round_ms"]["p99"]
        assert run["decode_tokens_per_second"] > 0
        assert run["host_us"]["host"] > 0
        assert 0 < run["mean_context"] - run["prompt_tokens"] < 8
        assert run["bytes_per_round"] is run["roofline_share"] is None
    assert len(report["notes"]) == 4
    assert "256 were asked for" in report["notes"][0]


def test_rounds_that_were_asked_for_are_measured(bench):
    done = bench(*"demo --device cpu --batch 3 --prompt 70 --prefill-chunk 32 --rounds 5".split())
    assert done.exit_code == 0, done.stderr
    assert "share of roofline" in done.stdout
    assert "were asked for" not in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("demo --batch 0", "--batch is '0' (give numbers from 1 to 8"),
        ("demo --batch 1,9", "--batch is '1,9'"),
        ("demo --batch two", "--batch is 'two'"),
        ("demo --prompt 5,0", "--prompt is '5,0' (give numbers from 1 on"),
        ("demo --prompt long", "--prompt is 'long'"),
        ("demo --geometry 9b", "MODEL demo and --geometry 9b are two models"),
        ("--weights q4", "--weights needs --geometry"),
        ("--geometry 3b", "geometry '3b' is unknown (choose one of 0.8b, 2b, 4b, 9b, 27b)"),
        ("--geometry 9b --weights q5", "'q5' is unknown"),
        ("demo --draft-tokens 3", "--draft-tokens needs a draft backend (add --plugin spec_mtp)"),
        ("demo --spec dflash", "acts only when its plug-in is named (add `--plugin spec_dflash`)"),
        ("demo --peer vllm", "--peer vllm is unknown (known: transformers)"),
        ("nosuch", "'nosuch' is neither a file, a directory nor a model source"),
        ("demo --device cpu --kv-dtype int8", "--kv-dtype 'int8' is not served on cpu"),
        ("demo --device cpu --activations a4", "--activations is 'a4' (give auto or a16)"),
    ],
)
def test_wrong_options_end_with_2(bench, monkeypatch, tmp_path, args, said):
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path))
    done = bench(*args.split())
    assert done.exit_code == 2
    assert said in done.stderr
    assert json.loads(bench(*args.split(), "--json").stdout)["error"]["message"]


def test_batches_are_numbers_each_once():
    assert batches("4,1,4,8") == (4, 1, 8)


def test_a_peer_that_fails_is_skipped_with_its_last_words(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\ncat > /dev/null\necho one >&2\necho 'no such device' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert measure_peer("transformers", {}) == {"name": "transformers", "skipped": "no such device"}
    program.write_text("#!/bin/sh\ncat > /dev/null\necho noise\necho '{\"runs\": []}'\n")
    assert measure_peer("transformers", {}) == {
        "name": "transformers", "skipped": None, "runs": [],
    }  # fmt: skip
