"""What fits on a device: pages from free memory, refusals with every number and the mend."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from ninfer_core.artifact import open_artifact
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.speculation import CacheShape
from ninfer_core.device.base import MemoryFacts
from ninfer_core.device.cpu import open_device
from ninfer_core.errors import UsageError
from ninfer_core.ops.reference import OPS
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.load.device_residence import DeviceResidence, resident_bytes
from ninfer_qwen3_5.load.text import load_text
from ninfer_qwen3_5.program.drafting import NO_DRAFTS, DraftRoom
from ninfer_qwen3_5.program.kept_room import KeptRoom
from ninfer_qwen3_5.program.layout import Layout, Numerics, state_sizes
from ninfer_qwen3_5.program.queued.capacity import GRAPH_BYTES, HEADROOM, plan_capacity
from ninfer_qwen3_5.program.queued.round_room import RoundRoom

BF16 = Numerics("bfloat16", "bf16")
LANES = 5_000_000
TOTAL = 1 << 40
PAGE = 2 * 64 * 2 * 32 * 2
"""Bytes of a page of the "tied" shape: one full-attention layer, keys and values of 64 tokens, two
heads of 32, two bytes."""
SLOT = 3 * (4 * 4 * 16 * 16 + 3 * (2 * 2 * 16 + 4 * 16) * 2)
"""Bytes of a state slot: three linear layers, fp32 state of 4 heads of 16 x 16, and three tokens of
history of all channels in bf16."""


@pytest.fixture(scope="module")
def config(tied) -> TextConfig:
    return tied.model.config


@pytest.fixture(scope="module")
def tied(build_case):
    return build_case("tied")


def pool(config: TextConfig, rows: int) -> int:
    return RoundRoom(config, config.vocab_size, rows, NO_DRAFTS).pool()


@pytest.fixture
def plan(config):
    """Plan for ``free`` bytes, or for what is spent beside pages plus ``pages`` pages."""

    def planned(*, pages=None, short=0, free=None, numerics=BF16, **sizes):
        budget = Budget(**{"max_context": 512, "max_concurrency": 4, "prefill_chunk": 256} | sizes)
        rows = budget.max_concurrency
        if pages is not None:
            workspace = made(config, budget).workspace
            graphs = 4 * rows * GRAPH_BYTES + pool(config, rows)
            spent = HEADROOM + LANES + graphs + workspace + (3 * rows + 1) * SLOT
            free = spent + pages * PAGE - short
        return made(config, budget, free, numerics)

    def made(config, budget, free=TOTAL, numerics=BF16):
        return plan_capacity(
            config,
            numerics,
            budget,
            MemoryFacts(TOTAL, free),
            rounds_ahead=1,
            graphs=4 * budget.max_concurrency,
            lanes=LANES,
        )

    return planned


def test_plenty_of_memory_gives_every_row_its_full_context(plan) -> None:
    capacity = plan(free=TOTAL)
    assert (capacity.layout.pages, capacity.layout.slots) == (4 * 8, 4 * 3)
    assert (capacity.page, capacity.state) == (PAGE, 13 * SLOT)


def test_pages_shrink_to_what_is_left(plan) -> None:
    assert plan(pages=20).layout.pages == 20
    assert plan(pages=20, short=1).layout.pages == 19


def test_one_full_context_fits_exactly_and_one_byte_less_is_refused(plan, config) -> None:
    assert plan(pages=8).layout.pages == 8
    with pytest.raises(UsageError) as caught:
        plan(pages=8, short=1)
    text = caught.value.message
    assert "the device's free memory gives 7 pages of 64 tokens; max_context 512" in text
    assert "max_concurrency 4 need 8. Free after the weights: " in text
    assert f"state slots {13 * SLOT:,}" in text
    graphs = 16 * GRAPH_BYTES + pool(config, 4)
    assert f"graphs {graphs:,}, lanes {LANES:,}, headroom {HEADROOM:,}" in text
    assert f"a page is {PAGE:,}" in text
    assert caught.value.hint == (
        "give --max-context 448 or less, or --max-concurrency 3 or less, or --prefill-chunk 128 "
        "or less; --kv-dtype int8 or fp8 makes pages smaller"
    )


FLAGS = {
    "--max-context": "max_context",
    "--max-concurrency": "max_concurrency",
    "--prefill-chunk": "prefill_chunk",
}


@pytest.mark.parametrize("pages", [7, 1])
def test_every_mend_that_is_named_works_and_is_the_largest(plan, config, pages) -> None:
    sizes = {"max_context": 8192, "max_concurrency": 8, "prefill_chunk": 1024}
    workspace = plan(free=TOTAL, **sizes).workspace
    graphs = 32 * GRAPH_BYTES + pool(config, 8)
    free = HEADROOM + LANES + graphs + workspace + 25 * SLOT + pages * PAGE
    with pytest.raises(UsageError) as caught:
        plan(free=free, **sizes)
    named = re.findall(r"(--[a-z-]+) (\d+) or less", caught.value.hint)
    assert named
    for flag, value in named:
        assert plan(free=free, **sizes | {FLAGS[flag]: int(value)}).layout.pages
        if flag != "--prefill-chunk":
            with pytest.raises(UsageError):
                plan(free=free, **sizes | {FLAGS[flag]: int(value) + 1})


def test_nothing_that_could_be_lowered_is_enough(plan) -> None:
    for free in (0, HEADROOM):
        with pytest.raises(UsageError) as caught:
            plan(free=free)
        assert "gives 0 pages" in caught.value.message
        assert "convert the model with --weights fp8 or q4" in caught.value.hint


def test_too_small_a_kv_capacity_is_the_option_s_fault_not_the_memory_s(plan) -> None:
    for free in (TOTAL, 0):
        with pytest.raises(UsageError) as caught:
            plan(free=free, kv_tokens=64)
        assert caught.value.message.startswith("kv_tokens 64 gives 1 pages")
        assert "Free after" not in caught.value.message
        assert caught.value.hint == "raise --kv-capacity to 512 or lower --max-context"


def test_the_least_layout_of_one_request_at_a_time(plan) -> None:
    capacity = plan(pages=8, max_concurrency=1)
    assert (capacity.layout.pages, capacity.layout.slots, capacity.layout.rows) == (8, 3, 1)
    with pytest.raises(UsageError, match="gives 7 pages"):
        plan(pages=8, short=1, max_concurrency=1)


def test_scaled_formats_make_pages_smaller(plan) -> None:
    int8 = plan(free=TOTAL, numerics=Numerics("bfloat16", "int8"))
    fp8 = plan(free=TOTAL, numerics=Numerics("bfloat16", "fp8"))
    assert fp8.page == 2 * 64 * 2 * (32 + 4)
    assert int8.page == 2 * 64 * 2 * 32


class SmallDevice:
    """The CPU with ``free`` bytes to give, and under another name, so that weights move to it."""

    torch_device = torch.device("cuda", 0)

    def __init__(self, free: int) -> None:
        self._device = open_device()
        self._free = free

    def memory(self) -> MemoryFacts:
        return MemoryFacts(TOTAL, self._free)

    def __getattr__(self, name: str):
        return getattr(self._device, name)


def test_weights_that_do_not_fit_are_refused_before_they_are_read(tied, config) -> None:
    with open_artifact(tied.path) as artifact:
        size = resident_bytes(artifact, config)
        with pytest.raises(UsageError) as caught:
            DeviceResidence(SmallDevice(size - 1), size)
    assert f"the weights need {size:,} bytes; cpu has {size - 1:,} free of {TOTAL:,}" in str(
        caught.value
    )
    assert caught.value.hint == "convert with --weights fp8 or q4, or free the device"


def test_the_planned_size_of_the_weights_is_enough_for_them(tied, config) -> None:
    with open_artifact(tied.path) as artifact:
        size = resident_bytes(artifact, config)
        residence = DeviceResidence(SmallDevice(size), size)
        load_text(artifact, config, OPS, residence)
        taken = sum(extent.length for extent in residence.arena.layout().values())
        assert taken <= size <= 1.5 * taken


def test_kept_contexts_get_pages_beyond_those_of_the_lanes() -> None:
    plain = Budget(max_context=256, max_concurrency=2, prefill_chunk=64)
    kept = dataclasses.replace(plain, keep_checkpoints=True)
    assert Layout.plan(plain).pages == 8
    assert Layout.plan(kept, kept=KeptRoom(3, 10)).pages == 18
    assert Layout.plan(kept, kept=KeptRoom(3, 10)).slots == 2 * 2 + 3
    assert Layout.plan(dataclasses.replace(kept, kv_tokens=64 * 40)).pages == 40
    assert Layout.plan(dataclasses.replace(plain, kv_tokens=64 * 40)).pages == 8
    assert Layout.plan(dataclasses.replace(kept, kv_tokens=64 * 40), page_limit=20).pages == 20


KEPT = {"keep_checkpoints": True, "extra_state_slots": None}


def test_with_plenty_of_memory_kept_contexts_get_all_that_is_wanted(plan) -> None:
    layout = plan(free=TOTAL, **KEPT).layout
    assert (layout.pages, layout.slots) == (3 * 4 * 8, 4 * 3 + 4 * 8)


def test_kept_contexts_take_nothing_that_the_lanes_can_use(plan) -> None:
    for pages in (8, 20, 32):
        capacity = plan(pages=pages, **KEPT)
        assert (capacity.layout.pages, capacity.layout.slots) == (pages, 4 * 3)
        assert capacity.state == 13 * SLOT


@pytest.mark.parametrize("more", [2, 40, 100])
def test_kept_contexts_take_at_most_half_of_what_the_lanes_leave(plan, more) -> None:
    """32 pages are the lanes'; ``more`` are left of which kept contexts may have the half."""
    capacity = plan(pages=32 + more, **KEPT)
    pages, slots = capacity.layout.pages - 32, capacity.layout.slots - 4 * 3
    wanted = 64 * PAGE + 32 * SLOT
    assert pages * PAGE + slots * SLOT <= more * PAGE // 2
    assert pages == 64 * (more * PAGE // 2) // wanted
    assert slots == 32 * (more * PAGE // 2) // wanted
    assert capacity.state == (12 + slots + 1) * SLOT


def test_what_was_asked_for_is_given(plan) -> None:
    layout = plan(free=TOTAL, keep_checkpoints=True, extra_state_slots=5).layout
    assert (layout.pages, layout.slots) == (3 * 32, 12 + 5)
    layout = plan(free=TOTAL, **KEPT, kv_tokens=64 * 50).layout
    assert (layout.pages, layout.slots) == (50, 12 + 32)
    layout = plan(free=TOTAL, keep_checkpoints=True, extra_state_slots=0).layout
    assert (layout.pages, layout.slots) == (3 * 32, 12)


def test_a_drafter_s_caches_count_with_their_own_heads(config) -> None:
    room = DraftRoom((CacheShape(3, 64), CacheShape(1, 128)), rows=8, taps=2)
    sizes, alone = state_sizes(config, BF16, room), state_sizes(config, BF16)
    assert sizes.page - alone.page == 2 * 64 * (3 * 64 + 128) * 2
    assert sizes.slot == alone.slot
    int8 = Numerics("bfloat16", "int8")
    grown = state_sizes(config, int8, room).page - state_sizes(config, int8).page
    assert grown == 2 * 64 * (3 * (64 + 4) + (128 + 8))
    kept = state_sizes(config, BF16, DraftRoom((CacheShape(2, 32),), 4, hidden=True))
    assert kept.slot == alone.slot + 2 * config.hidden_size


def test_heads_that_the_cache_format_cannot_hold_are_refused(config) -> None:
    room = DraftRoom((CacheShape(2, 96),), rows=8)
    with pytest.raises(UsageError, match="multiples of 64; the drafter's have 96"):
        state_sizes(config, Numerics("bfloat16", "int8"), room)
