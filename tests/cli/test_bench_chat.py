"""`ninfer bench chat`: the conversations, the figures, and whole runs on the CPU."""

from __future__ import annotations

import json
import random

import pytest
from typer.testing import CliRunner

from ninfer_core.contract.events import FinishReason, GenerationResult, Timings, Usage
from ninfer_core.contract.requests import CacheRequest
from ninfer_core.contract.reuse import ReuseReason
from ninfer_core.plugins import Selection, load_plugins
from ninfer_ops_triton.bench.chat_drive import Turn
from ninfer_ops_triton.bench.chat_session import by_turn, rows, total
from ninfer_ops_triton.bench.command import app
from ninfer_ops_triton.bench.talks import MessageTalk, Sizes, TokenTalk, sentences
from ninfer_qwen3_5.geometry.artifact import Geometry, write_geometry
from tests.cli.test_bench import TINY

SMALL = "--conversations 2 --turns 3 --system 100 --user 70 --new 4 --device cpu".split()


@pytest.fixture(scope="module")
def host():
    return load_plugins(Selection())


@pytest.fixture(scope="module")
def bench(host):
    """Invoke the command in this process."""

    def run(*args):
        done = CliRunner().invoke(app, ["chat", *args], obj=host)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    return run


@pytest.fixture(scope="module")
def report(bench):
    """Two conversations of three turns with the demo model."""
    done = bench("demo", *SMALL, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def result(prompt=10, cached=0, ids=(1, 2), text="", reasoning=""):
    reason = ReuseReason.PRIVATE_CHECKPOINT if cached else ReuseReason.NO_MATCH
    return GenerationResult(
        text=text,
        reasoning=reasoning,
        tool_calls=(),
        token_ids=ids,
        finish_reason=FinishReason.OUTPUT_LIMIT,
        usage=Usage(prompt_tokens=prompt, completion_tokens=len(ids), cached_tokens=cached),
        timings=Timings(cached_tokens=cached, reuse_reason=reason),
    )


def test_every_request_is_there_once_in_turns(report):
    places = [(row["turn"], row["conversation"]) for row in report["requests"]]
    assert places == [(turn, number) for turn in (1, 2, 3) for number in (1, 2)]
    assert (report["model"], report["devices"]) == ("demo", ["cpu"])
    # a context of 100 + 3 * (70 + 4 + 64) + 64 = 578 tokens is 10 pages of 64, for three
    assert report["setting"] == {
        "prompts": "messages", "conversations": 2, "turns": 3, "system": 100, "user": 70, "new": 4,
        "cache": "reuse", "cache_slots": 8, "host_bytes": 0, "kv_tokens": 1920, "kv_format": None,
        "prefill_chunk": 1024, "max_context": 1920,
    }  # fmt: skip


def test_what_was_read_before_is_reused(report):
    first, second, *later = report["requests"]
    assert (first["cached_tokens"], first["reason"], first["point"]) == (0, "no_match", None)
    assert (second["reason"], second["point"]) == ("shared_checkpoint", "system_and_tools")
    assert 100 <= second["cached_tokens"] < second["prompt_tokens"] - 70
    for row in later:
        assert (row["reason"], row["tier"]) == ("private_checkpoint", "device")
        [before] = [
            one["prompt_tokens"]
            for one in report["requests"]
            if (one["turn"], one["conversation"]) == (row["turn"] - 1, row["conversation"])
        ]
        # all of the last question, but not the marks that open an answer
        assert before - 16 < row["cached_tokens"] < row["prompt_tokens"] - 70
    assert report["kept"]["captures"] > 0
    assert report["kept"]["checkpoints"] > 0


def test_both_passes_ask_the_same(report):
    assert [row["same_answer"] for row in report["requests"]] == [True] * 6
    for row in report["requests"]:
        assert row["prompt_tokens"] == row["off_prompt_tokens"]
        assert min(row["ttft_ms"], row["off_ttft_ms"]) > 0
    assert report["total"]["same_answers"] == report["total"]["requests"] == 6


def test_token_prompts_start_where_the_answer_ended(bench, tmp_path):
    """Turn t has 90 + 70 t + 5 (t - 1) tokens; the last answer's last token was never read."""
    path = tmp_path / "tiny.ninfer"
    write_geometry(path, "tiny", TINY, Geometry("bf16"), 320)
    sizes = "--conversations 2 --turns 3 --system 90 --user 70 --new 5 --device cpu".split()
    done = bench(str(path), *sizes, "--json")
    assert done.exit_code == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["setting"]["prompts"] == "token_ids"
    found = [(row["prompt_tokens"], row["cached_tokens"]) for row in made["requests"]]
    assert found == [(160, 0)] * 2 + [(235, 164)] * 2 + [(310, 239)] * 2
    ends = [row["point"] for row in made["requests"]]
    assert ends == [None] * 2 + ["generation_end"] * 4
    assert made["kept"]["kept_ends"] >= 4


def test_a_host_tier_serves_what_has_no_slot(bench):
    sizes = "--conversations 4 --turns 3 --system 90 --user 70 --new 4 --device cpu".split()
    few = "--cache-slots 3 --host-memory 64MiB".split()
    done = bench("demo", *sizes, *few, "--json")
    assert done.exit_code == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["setting"]["host_bytes"] == 64 << 20
    later = [row for row in made["requests"] if row["turn"] > 1]
    from_host = [row for row in later if row["tier"] == "host"]
    assert made["total"]["tiers"]["host"] == len(from_host) > 0
    assert all(row["restored_bytes"] > 0 for row in from_host)
    assert made["kept"]["demotions"] >= len(from_host)
    assert made["kept"]["demoted_bytes"] > 0
    assert made["total"]["restored_bytes"] == sum(row["restored_bytes"] for row in made["requests"])
    done = bench("demo", *sizes, *few)
    assert "points copied there" in " ".join(done.stdout.split())


def test_the_table_says_the_same(bench):
    done = bench("demo", *SMALL[:2], "--turns", "2", *SMALL[4:])
    assert done.exit_code == 0, done.stderr
    assert "shared_checkpoint" in done.stdout
    assert "turn 2: " in done.stdout
    assert "4 of 4 answers" in " ".join(done.stdout.split())


def test_figures_by_hand():
    off = [Turn(n % 2, n // 2, 0.1 * (n + 1), result(100 + n)) for n in range(4)]
    on = [
        Turn(0, 0, 0.1, result(100)),
        Turn(1, 0, 0.05, result(101, cached=50)),
        Turn(0, 1, 0.02, result(102, cached=90)),
        Turn(1, 1, 0.04, result(103, cached=90, ids=(1, 3))),
    ]
    made = rows(on, off)
    assert made[3] == {
        "turn": 2, "conversation": 2, "prompt_tokens": 103, "cached_tokens": 90,
        "reason": "private_checkpoint", "point": None, "tier": None, "restored_bytes": 0,
        "ttft_ms": 40.0, "off_prompt_tokens": 103, "off_ttft_ms": 400.0, "same_answer": False,
    }  # fmt: skip
    assert total(made) == {
        "prompt_tokens": 406, "cached_tokens": 230, "cached_share": 0.5665, "ttft_ms": 45.0,
        "off_ttft_ms": 250.0, "reasons": {"no_match": 1, "private_checkpoint": 3},
        "tiers": {}, "restored_bytes": 0, "same_answers": 3, "requests": 4,
    }  # fmt: skip
    first, second = by_turn(made)
    assert (first["turn"], first["cached_tokens"], first["ttft_ms"]) == (1, 50, 75.0)
    assert (second["turn"], second["cached_tokens"], second["off_ttft_ms"]) == (2, 180, 350.0)


def test_conversations_of_tokens_grow_and_share_their_beginning():
    sizes = Sizes(system=5, user=3, new=2)
    one, other = TokenTalk(0, sizes, 800), TokenTalk(1, sizes, 800)
    first, second = one.ask(CacheRequest()).token_ids, other.ask(CacheRequest()).token_ids
    assert len(first) == 8
    assert first[:5] == second[:5]
    assert first[5:] != second[5:]
    one.answered(result(ids=(7, 9)))
    grown = one.ask(CacheRequest()).token_ids
    assert grown[:10] == (*first, 7, 9)
    assert len(grown) == 13
    assert first[5:] != grown[10:]


def test_conversations_of_messages_grow_and_share_their_beginning():
    sizes = Sizes(system=200, user=60, new=2)
    one, other = MessageTalk(0, sizes, str.encode), MessageTalk(1, sizes, str.encode)
    system, question = one.ask(CacheRequest()).messages
    assert system == other.ask(CacheRequest()).messages[0]
    assert question != other.ask(CacheRequest()).messages[1]
    one.answered(result(text="yes", reasoning="hm"))
    grown = one.ask(CacheRequest(session_key="k"))
    assert [turn["role"] for turn in grown.messages] == ["system", "user", "assistant", "user"]
    assert grown.messages[2] == {
        "role": "assistant", "content": "yes", "reasoning_content": "hm",
    }  # fmt: skip
    assert grown.cache.session_key == "k"


def test_sentences_end_as_soon_as_they_are_long_enough():
    text = sentences(random.Random(1), 100, str.encode)
    assert len(text) >= 100
    assert text.endswith("parts.")
    assert len(text.rpartition(" Box ")[0]) < 100


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("demo --cache off", "--cache off compares nothing"),
        ("demo --cache lru", "no cache policy is named 'lru' (installed: off, reuse)"),
        ("demo --geometry 9b", "MODEL demo and --geometry 9b are two models"),
        ("demo --device cpu --kv-capacity 64", "--kv-capacity 64 gives 1 pages"),
    ],
)
def test_wrong_options_end_with_2(bench, monkeypatch, tmp_path, args, said):
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path))
    done = bench(*args.split(), "--json")
    assert done.exit_code == 2
    assert said in done.stderr
    assert json.loads(done.stdout)["error"]["message"]


def test_it_is_a_command_of_its_own(bench, host):
    said = bench("--help").stdout
    assert " chat [OPTIONS] [MODEL]" in said
    assert "--conversations" in said
    assert bench("demo", "--batch", "1").exit_code == 2
    assert "--conversations" not in CliRunner().invoke(app, ["--help"], obj=host).stdout
