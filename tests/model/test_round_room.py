"""What rounds hold on a device: hand arithmetic at released sizes, and what a program captured."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.speculation import CacheShape
from ninfer_core.device.base import MemoryFacts
from ninfer_core.device.cpu import open_device
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.geometry.table import SIZES, config_of
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.drafting import NO_DRAFTS, DraftRoom
from ninfer_qwen3_5.program.layout import Numerics
from ninfer_qwen3_5.program.queued.capacity import GRAPH_BYTES, plan_capacity
from ninfer_qwen3_5.program.queued.round_room import SEGMENTS, RoundRoom
from ninfer_qwen3_5.program.queued.rounds import Part, logits_bytes
from ninfer_qwen3_5.program.queued.spec_rounds import SpecRounds
from tests.model.drafters import drafting, unscripted

VOCAB = 248_320
CACHE = CacheShape(8, 128)
SUMMARY = 196_608
"""Summaries of 243 blocks, 1024 candidates, and nine sums of 2048 digits in eight bytes."""

# 27B, K = 15, eight sequences, five taps: 128 rows.
ROW_27B = (
    # A delta net's inputs 16,480 wide three times, gate, up and product, residual and attention;
    # values in fp32, states of chunks, and nine residuals of taps: twice.
    2 * (2 * (3 * 16_480 + 3 * 17_408 + 4 * 5120 + 4 * 6144) + 16 * 6144 + 49_152 + 2 * 9 * 5120)
    # Attention of 24 heads of 256, in 64 parts with two sums each row.
    + 4 * 64 * (6144 + 2)
)
DRAWN_27B = 128 * (4 * VOCAB + SUMMARY)

# 9B, K = 7, eight sequences, a hidden row and no taps: 64 rows of 16 heads of 256.
ROW_9B = 2 * (2 * (3 * 12_352 + 3 * 12_288 + 4 * 4096 + 4 * 4096) + 16 * 4096 + 32_768)
ROW_9B += 4 * 64 * (4096 + 2)
DRAWN_9B = 64 * (4 * VOCAB + SUMMARY)


def room(size: str, draft: DraftRoom, sequences: int = 8) -> RoundRoom:
    config = TextConfig.from_json(config_of(SIZES[size]))
    return RoundRoom(config, VOCAB, sequences, draft)


def test_rounds_of_27b_with_a_block_of_15_drafts() -> None:
    made = room("27b", DraftRoom((CACHE,) * 5, 16, taps=5))
    assert made.passing() == 128 * ROW_27B + DRAWN_27B + SEGMENTS
    # Numbers of sequences 1 .. 8 have 36 sequences in all, of 16 rows each.
    assert made.kept() == 36 * 16 * (2 * 5 * 5120 + 2 * 4 * 64 + 1024)
    assert made.pool() == made.passing() + made.kept()
    assert logits_bytes(128, VOCAB) == 128 * 248_320 * 4 + 256


def test_rounds_of_9b_with_a_chain_of_7_drafts() -> None:
    made = room("9b", DraftRoom((CACHE,), 8, hidden=True))
    assert made.passing() == 64 * ROW_9B + DRAWN_9B + SEGMENTS
    assert made.kept() == 36 * 8 * (2 * 4096 + 2 * 4 * 64 + 1024)


def test_without_drafts_halves_leave_nothing_but_logits() -> None:
    assert room("9b", NO_DRAFTS).kept() == 0
    assert room("9b", NO_DRAFTS).passing() == 8 * (ROW_9B + 4 * VOCAB + SUMMARY) + SEGMENTS


def test_drawn_drafts_have_laws_beside_processed_logits() -> None:
    draft = DraftRoom((CACHE,) * 5, 16, taps=5)
    drawn = DraftRoom((CACHE,) * 5, 16, taps=5, draws=True)
    more = room("27b", drawn).passing() - room("27b", draft).passing()
    assert more == 128 * (4 * VOCAB + SUMMARY) + 8 * 40 * VOCAB


def test_the_plan_sets_the_pool_and_the_workspace_of_rounds_aside() -> None:
    config = TextConfig.from_json(config_of(SIZES["27b"]))
    draft = DraftRoom((CACHE,) * 5, 16, taps=5, draws=True)
    budget = Budget(max_context=8192, max_concurrency=8, prefill_chunk=64)
    graphs = SpecRounds.graphs(8, 16, block=True) + 8 * 4
    # Widths 1, 2, 4, 8, 16 in two ways, the widest with masks in two more, drafts and the fold.
    assert graphs == 8 * (10 + 2 + 1 + 1) + 1 + 32
    planned = plan_capacity(
        config,
        Numerics("bfloat16", "bf16"),
        budget,
        MemoryFacts(1 << 40, 1 << 40),
        rounds_ahead=1,
        graphs=graphs,
        lanes=0,
        draft=draft,
    )
    made = room("27b", draft)
    assert planned.graphs == 8 * 19 * GRAPH_BYTES + made.pool()
    # A chunk of 64 tokens needs less than a round of 128 rows.
    assert planned.workspace == made.passing()


@pytest.fixture
def program(build_case):
    case = build_case("tied")
    budget = Budget(max_context=128, max_concurrency=3, prefill_chunk=32)
    device = open_device()
    made, _ = generation_program(
        case.model,
        budget,
        device,
        held=ExitStack(),
        drafting=drafting(case, unscripted("mtp"), 4),
    )
    made.device_of_test = device
    made._units._lanes.tables.block_tables.zero_()
    yield made
    made.close()


def test_all_graphs_leave_their_logits_in_one_tensor(program) -> None:
    units = program._units
    plain, spec = units._rounds._rounds, units._speculation._rounds
    whole = plain._logits
    assert whole.shape == (3 * 5, units._model.parameters.head.rows)
    ring = units._rounds._ring
    for (rows, _), one in plain._captured.items():
        ring.write([(lane, 0, 0, 0, 1, 0) for lane in range(rows)], [])
        one.graph.replay()
    captured = [one.logits for (_, part), one in plain._captured.items() if part is not Part.FINISH]
    assert len(captured) == 3 * 3
    held = [one.logits for _, one in spec._graphs.values()]
    assert len(held) == 3 * (2 * 4 + 2)
    for logits in (*captured, *held):
        assert logits.data_ptr() == whole.data_ptr()


def test_only_halves_keep_what_their_forward_pass_left(program) -> None:
    """What a whole round kept would be lost to the pool, once for every graph."""
    for count in (3, 1):
        for (rows, part, _), (graph, held) in program._units._speculation._rounds._graphs.items():
            if rows == count:
                graph.replay()
                assert (held.ran is not None) == (part.value in ("forward", "finish"))


def test_as_many_graphs_are_captured_as_were_planned(program) -> None:
    captured = program.device_of_test.counters().graphs
    assert captured == SpecRounds.graphs(3, 5, block=False) + 3 * 4
