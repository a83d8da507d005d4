"""What a command says of an engine on a GPU before it asks anything of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_core.contract.engine import DeviceUse, MemorySummary
from ninfer_core.testing.scripted_engine import ScriptedEngine

GIB = 1 << 30
H200 = DeviceUse(
    name="cuda:0", model="NVIDIA H200", total=140 * GIB, free=100 * GIB, arenas=5, takes=90,
    graphs=32, allocations=17,
)  # fmt: skip
MEMORY = MemorySummary(
    bytes={"weights": 3 * GIB // 2, "kv": 8 * GIB, "state": GIB // 2, "pinned": GIB // 4},
    pages_total={"main": 1024},
    pages_free={"main": 1024},
    state_slots_total=24,
    state_slots_free=24,
    devices=(H200,),
)


@pytest.fixture
def on_gpu(ninfer, monkeypatch):
    """Engines that say they are on a GPU."""
    own = ScriptedEngine.load_summary

    def summary(self):
        return replace(
            own(self),
            devices=("cuda:0",),
            max_context=8192,
            max_concurrency=8,
            seconds=5.25,
            warm_up_seconds=1.5,
            memory=MEMORY,
        )

    monkeypatch.setattr(ScriptedEngine, "load_summary", summary)
    return ninfer


def starts(done):
    return [line for line in done.err.splitlines() if line.startswith("ninfer: start: ")]


def test_three_lines_say_what_the_engine_holds(on_gpu) -> None:
    done = on_gpu("run", "demo", "--prompt", "x")
    assert starts(done) == [
        "ninfer: start: cuda:0 NVIDIA H200, 100.00 GiB free of 140.00 GiB, 32 graphs",
        "ninfer: start: weights 1.50 GiB · kv 8.00 GiB (1,024 pages, 65,536 tokens) · "
        "state 0.50 GiB (24 slots) · pinned 0.25 GiB of the host",
        "ninfer: start: ready in 5.2 s, 1.5 s of them warm-up",
    ]
    assert "context memory holds" not in done.err


def test_room_for_kept_contexts_is_said(on_gpu, monkeypatch) -> None:
    some = replace(MEMORY, kept_slots=16, kept_pages=512)
    full = ScriptedEngine.load_summary
    monkeypatch.setattr(
        ScriptedEngine, "load_summary", lambda self: replace(full(self), memory=some)
    )
    assert starts(on_gpu("run", "demo", "--prompt", "x"))[2] == (
        "ninfer: start: of these 16 slots and 32,768 tokens are for kept contexts, "
        "--cache off does without"
    )
    start = on_gpu("run", "demo", "--prompt", "x", "--json").json["start"]
    assert (start["kept_state_slots"], start["kept_pages"]) == (16, 512)


def test_less_context_memory_than_all_requests_could_fill_is_said(on_gpu, monkeypatch) -> None:
    less = replace(MEMORY, pages_total={"main": 1000})
    full = ScriptedEngine.load_summary
    monkeypatch.setattr(
        ScriptedEngine, "load_summary", lambda self: replace(full(self), memory=less)
    )
    done = on_gpu("run", "demo", "--prompt", "x")
    [note] = [line for line in done.err.splitlines() if "context memory" in line]
    assert note == (
        "ninfer: note: context memory holds 64,000 tokens; 8 requests of --max-context 8192 can "
        "fill 65,536: then some wait or are computed again"
    )


def test_json_has_it_too(on_gpu) -> None:
    start = on_gpu("run", "demo", "--prompt", "x", "--json").json["start"]
    assert (start["seconds"], start["warm_up_seconds"]) == (5.25, 1.5)
    assert start["bytes"] == MEMORY.bytes
    assert (start["pages"], start["pages_of_all_rows"]) == ({"main": 1024}, 1024)
    assert (start["page_tokens"], start["state_slots"]) == (64, 24)
    assert start["devices"][0]["free"] == 100 * GIB


def test_an_engine_on_the_cpu_says_nothing(ninfer) -> None:
    done = ninfer("run", "demo", "--prompt", "x", "--json")
    assert "start" not in done.json
    assert starts(done) == []


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"asked": "auto", "matrices": 257, "a8": 256},
            "activations of prompts in 8 bits for products with 256 of 257 matrices, "
            "--activations a16 keeps 16",
        ),
        ({"asked": "a16", "matrices": 257, "a8": 0}, "activations in 16 bits, as asked"),
        ({"asked": "auto", "matrices": 257, "a8": 0}, None),
    ],
)
def test_how_wide_activations_are(on_gpu, monkeypatch, facts, said) -> None:
    own = ScriptedEngine.load_summary
    monkeypatch.setattr(
        ScriptedEngine,
        "load_summary",
        lambda self: replace(own(self), details={"activations": facts}),
    )
    lines = starts(on_gpu("run", "demo", "--prompt", "x"))
    assert [line for line in lines if "activations" in line] == (
        [f"ninfer: start: {said}"] if said else []
    )
    assert on_gpu("run", "demo", "--prompt", "x", "--json").json["start"]["activations"] == facts


COSTS = {
    "1": {"plain": 4.27, "verify": [4.4, 5.0], "draft": [0.0, 0.5]},
    "8": {"plain": 5.42, "verify": [5.6, 6.5], "draft": [0.0, 0.75]},
}


@pytest.fixture
def drafting(on_gpu, monkeypatch):
    """The same with a drafter."""
    own = ScriptedEngine.load_summary
    draft = {"backend": "mtp", "tokens": 1, "costs_ms": COSTS}
    monkeypatch.setattr(
        ScriptedEngine, "load_summary", lambda self: replace(own(self), details={"draft": draft})
    )
    return on_gpu


def test_a_line_says_what_drafts_were_measured_to_cost(drafting) -> None:
    done = drafting("run", "demo", "--prompt", "x")
    assert (
        "ninfer: start: mtp with 1 drafts: a plain round 4.27 ms, one that verifies them 5.00 ms, "
        "making them 0.50 ms"
    ) in starts(done)


def test_the_table_of_costs_is_in_the_json(drafting) -> None:
    start = drafting("run", "demo", "--prompt", "x", "--json").json["start"]
    assert start["draft"]["costs_ms"] == COSTS
