"""Attention of drafters' blocks against float64, and what may not change its bits."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from harness import GuardedAllocations, Operands, assert_sequences_close
from paging import Pool, fill, make_pool, make_rows, on_cpu, wide
from torch import Tensor
from torch_attention import torch_attention

from ninfer_core.ops.contracts.values import PagedRows
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference.attention import block_attention as oracle_attention
from ninfer_ops_triton import attention
from ninfer_ops_triton.attention import block_attention

PATTERNS = pytest.mark.parametrize(
    ("causal", "window"), [(False, None), (True, None), (False, 40), (True, 40)]
)


@dataclass
class Case:
    """Blocks of several sequences with pages of their own; what no row sees is NaN."""

    tables: list[list[int]]
    rows: PagedRows
    pool: Pool
    q: Tensor
    causal: bool
    window: int | None

    def run(self) -> Tensor:
        with GuardedAllocations():
            result = block_attention(
                self.q, self.pool.cache, self.rows, self.scale, **self.pattern
            ).clone()
        self.pool.check()
        return result

    @property
    def scale(self) -> float:
        return self.q.shape[2] ** -0.5

    @property
    def pattern(self) -> dict:
        return {"causal": self.causal, "window": self.window}

    def oracle(self) -> Tensor:
        cache, rows = wide(self.pool.cache), on_cpu(self.rows)
        return oracle_attention(self.q.cpu().double(), cache, rows, self.scale, **self.pattern)

    def baseline(self) -> Tensor:
        cache, rows = wide(self.pool.cache), on_cpu(self.rows)
        return torch_attention(self.q, cache, rows, self.scale, **self.pattern)

    def alone(self, sequence: int) -> Case:
        width = self.rows.width
        start, live = (int(x[sequence]) for x in (self.rows.starts, self.rows.live))
        table = self.tables[sequence : sequence + 1]
        rows = make_rows(table, [start], [live], width, self.q.device)
        return dataclasses.replace(
            self,
            tables=table,
            rows=dataclasses.replace(rows, first=self.rows.first),
            q=self.q[sequence * width : (sequence + 1) * width].contiguous(),
        )


def make_case(
    operands: Operands,
    starts: list[int],
    live: list[int],
    width: int,
    *,
    causal: bool = False,
    window: int | None = None,
    kind: str = "bf16",
    heads: int = 4,
    kv: int = 1,
    size: int = 64,
    first: int = 0,
) -> Case:
    device = operands.device
    needed = [-(-(start + width) // 64) for start in starts]
    order = torch.randperm(sum(needed) + 2, generator=operands.generator).tolist()
    tables = [[order.pop() for _ in range(pages)] for pages in needed]
    pool = make_pool(kind, sum(needed) + 2, kv, device, size)
    for pages, start, rows in zip(tables, starts, live, strict=True):
        low = first if window is None else max(first, start + 1 - window)
        tokens = torch.arange(low, start + rows)
        places = torch.tensor(pages)[tokens // 64] * 64 + tokens % 64
        fill(pool.cache, places.to(device), operands)
    dtype = torch.float32 if kind == "fp32" else torch.bfloat16
    placed = make_rows(tables, starts, live, width, device)
    q = operands.normal(len(starts) * width, heads, size, dtype=dtype, scale=1.5)
    placed = dataclasses.replace(placed, first=first)
    return Case(tables, placed, pool, q, causal, window)


def check(case: Case) -> Tensor:
    result = case.run()
    judge(case, result)
    return result


def judge(case: Case, result: Tensor) -> None:
    starts, live = case.rows.starts, case.rows.live
    assert_sequences_close(result, case.oracle(), case.baseline(), starts, live)


@PATTERNS
def test_patterns_of_unlike_sequences(operands, causal, window):
    check(make_case(operands, [121, 3, 64], [8, 5, 0], 8, causal=causal, window=window, heads=2))


@pytest.mark.parametrize("kind", ["int8", "fp8", "fp32"])
def test_formats(operands, kind):
    size = 64 if kind == "fp32" else 128
    check(make_case(operands, [61], [4], 4, kind=kind, window=40, heads=2, kv=2, size=size))


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, 40)])
@pytest.mark.parametrize("start", [0, 31, 56, 63])
def test_starts_at_block_page_and_split_edges(operands, start, causal, window):
    check(make_case(operands, [start], [8], 8, causal=causal, window=window, heads=1))


@pytest.mark.parametrize(
    ("heads", "kv", "size", "width"),
    [(4, 1, 128, 16), (16, 1, 64, 5), (5, 1, 64, 3), (2, 1, 256, 16), (1, 1, 64, 1)],
)
def test_other_geometries(operands, heads, kv, size, width):
    check(make_case(operands, [57], [width], width, heads=heads, kv=kv, size=size))


@pytest.mark.parametrize("first", [1, 5])
@pytest.mark.parametrize("window", [None, 16])
def test_tokens_before_the_first_are_not_seen(operands, first, window):
    check(make_case(operands, [70, 6], [4, 2], 4, window=window, first=first))


@pytest.mark.parametrize(("window", "start"), [(8, 130), (63, 130), (64, 127), (65, 127)])
@pytest.mark.parametrize("causal", [True, False])
def test_windows_around_block_and_page_edges(operands, causal, window, start):
    check(make_case(operands, [start], [8], 8, causal=causal, window=window, heads=1))


@pytest.fixture
def low_tiers(monkeypatch):
    """Split lengths that double beyond 128 tokens, and at most two splits without a window."""
    monkeypatch.setattr(attention, "FULL_BITS", 7)
    monkeypatch.setattr(attention, "MOST_SPLITS", 2)


@pytest.mark.usefixtures("low_tiers")
@pytest.mark.parametrize(
    ("causal", "window", "start"),
    [(True, None, 125), (False, None, 253), (True, 40, 125), (True, 100, 253), (False, 200, 253)],
)
def test_long_contexts_in_small(operands, causal, window, start):
    """Rows on both sides of a change of split length, and windows that end before it."""
    check(make_case(operands, [start], [8], 8, causal=causal, window=window, heads=1))


def most_splits_of_a_row(window: int, width: int) -> int:
    """Over rows of every length that matters; splits are the multiples of their length."""
    longest = attention._Pattern(window=window).tier(width)
    ends = [(1 << bits) + near for bits in range(6, 20) for near in range(-3, 4)]
    most = 0
    for length in (*ends, window - 1, window, window + 1):
        doublings = max((length - 1).bit_length() - attention.FULL_BITS, 0)
        span = attention.SPLIT << min(doublings, longest)
        for after in (0, width - 1):
            low = max(0, length - after - window)
            most = max(most, len(range(low // span, (length - 1) // span + 1)))
    return most


@pytest.mark.parametrize("width", [1, 16])
def test_there_is_room_for_every_split_of_a_row(width):
    for window in (16, 2048, 4014, 4016, 4032, 4096, 8191, 100_000, 1 << 30):
        room = attention._Pattern(window=window).splits(width, 1 << 30)
        assert most_splits_of_a_row(window, width) <= room <= attention.MOST_SPLITS, window


@pytest.mark.parametrize(("window", "start"), [(None, 2400), (None, 4500), (4096, 4000)])
def test_contexts_of_many_splits(operands, window, start):
    """A row that is shorter than its window has more splits than the window has at its length."""
    check(make_case(operands, [start, 1], [1, 1], 1, window=window, heads=1))


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, 40)])
def test_a_sequence_has_the_same_bits_in_any_batch(operands, causal, window):
    case = make_case(operands, [70, 3], [4, 2], 4, causal=causal, window=window, heads=2)
    result = case.run()
    for sequence in range(2):
        assert torch.equal(case.alone(sequence).run(), result[sequence * 4 : sequence * 4 + 4])
    wider = torch.cat([case.rows.block_tables.flip(0)] * 2, dim=1)
    rows = dataclasses.replace(
        case.rows, block_tables=wider, table_rows=case.rows.table_rows.flip(0)
    )
    assert torch.equal(dataclasses.replace(case, rows=rows).run(), result)


@pytest.mark.parametrize("window", [None, 100])
def test_how_many_programs_share_the_splits_changes_no_bits(operands, monkeypatch, window):
    case = make_case(operands, [200], [2], 2, window=window, heads=1)
    result = check(case)
    for lanes in (1, 3):
        monkeypatch.setattr(attention, "PROGRAMS", 1)
        monkeypatch.setattr(attention, "multiprocessors", lambda lanes=lanes: lanes)
        assert torch.equal(case.run(), result)


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_a_broken_row_reaches_those_that_see_it(operands, kind):
    case = make_case(operands, [30, 3], [4, 1], 4, causal=True, kind=kind)
    healthy = case.run()
    broken = case.pool.cache.values if kind == "bf16" else case.pool.cache.value_scales
    assert broken is not None
    broken[case.tables[0][0], 32] = math.nan
    result = case.run()
    assert torch.equal(result[:2], healthy[:2])
    assert torch.equal(result[4], healthy[4])
    assert result[2:4].isnan().all()
    whole = dataclasses.replace(case, causal=False).run()
    assert whole[:4].isnan().all()
    assert not whole[4:].isnan().any()


def test_what_has_no_kernel_is_refused(operands):
    case = make_case(operands, [9], [8], 8)
    with pytest.raises(OpError, match="window is 7; it must hold the 8 rows"):
        dataclasses.replace(case, window=7).run()
    wide_rows = dataclasses.replace(case.rows, width=17)
    with pytest.raises(OpError, match="a block has 17 rows"):
        dataclasses.replace(case, rows=wide_rows).run()
    with pytest.raises(OpError, match="contiguous heads of 64"):
        dataclasses.replace(case, q=case.q[..., :32]).run()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bf16", "int8", "fp8"])
@pytest.mark.parametrize("window", [None, 2048, 4096])
def test_published_drafters(kind, window):
    operands = Operands(7, "cuda")
    for width in (8, 16):
        case = make_case(
            operands, [40000, 9000, 0, 2040, 4090], [width, 3, 1, width, width], width, kind=kind,
            window=window, heads=32, kv=8, size=128, causal=window == 4096,
        )  # fmt: skip
        result = check(case)
        for sequence in range(5):
            mine = slice(sequence * width, (sequence + 1) * width)
            assert torch.equal(case.alone(sequence).run(), result[mine])


@pytest.mark.gpu
def test_a_captured_call_serves_every_length():
    operands = Operands(8, "cuda")
    case = make_case(operands, [300, 20], [8, 8], 8, window=64, heads=32, kv=8, size=128)
    case.pool.cache.keys.normal_()
    case.pool.cache.values.normal_()
    arguments = case.q, case.pool.cache, case.rows, case.scale
    block_attention(*arguments, **case.pattern)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = block_attention(*arguments, **case.pattern)
    for starts, live in (([300, 20], [8, 8]), ([63, 21], [3, 8]), ([0, 5], [8, 0])):
        case.rows.starts.copy_(torch.tensor(starts))
        case.rows.live.copy_(torch.tensor(live))
        graph.replay()
        assert torch.equal(captured, block_attention(*arguments, **case.pattern))
        judge(case, captured)
