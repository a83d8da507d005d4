"""The first and the last kernel of a captured round; each is one program of one warp."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib

HEADER = tl.constexpr(4)
ROW = tl.constexpr(8)
CHANGE = tl.constexpr(3)
EGRESS_HEADER = tl.constexpr(4)
EGRESS_ROW = tl.constexpr(2)
MISMATCH = tl.constexpr(1)


@triton.jit
def begin(
    ingress,
    egress,
    counter,
    next_tokens,
    block_tables,
    ids,
    lanes,
    table_rows,
    starts,
    live,
    slots,
    targets,
    positions,
    chosen,
    depth,
    words,
    answers,
    pages,
    most_lanes,
    most_changes,
    count,
    ROWS: tl.constexpr,
    CHANGES: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """Applies table changes and spreads the ingress place over the round's rows.

    ``words`` and ``answers`` are the words of a place, ``pages`` the columns of a block table.
    ROWS holds ``count`` rows; changes are taken CHANGES at a time, of equal ones the last.
    """
    lib.release_dependents(PDL)
    row = tl.arange(0, ROWS)
    mine = row < count
    lib.await_inputs(PDL)
    round_number = tl.load(counter)
    place = round_number % depth
    source = ingress + place * words
    # All reads of host memory that do not hang on each other come first: each takes a microsecond.
    given = source + HEADER + ROW * row
    lane = tl.load(given, mine, other=0, cache_modifier=".cv")
    token = tl.load(given + 1, mine, other=0, cache_modifier=".cv")
    start = tl.load(given + 2, mine, other=0, cache_modifier=".cv")
    slot = tl.load(given + 3, mine, other=0, cache_modifier=".cv")
    target = tl.load(given + 4, mine, other=0, cache_modifier=".cv")
    delta = tl.load(given + 5, mine, other=0, cache_modifier=".cv")
    stated = tl.load(source, cache_modifier=".cv")
    rows = tl.load(source + 1, cache_modifier=".cv")
    changed = tl.load(source + 2, cache_modifier=".cv")

    wrong = (stated != round_number) | (rows != count)
    tl.store(egress + place * answers + 1, tl.where(wrong, MISMATCH, 0))
    own = tl.load(next_tokens + lane, mine, other=0)
    tl.store(ids + row, tl.where(token < 0, own, token), mine)
    tl.store(lanes + row, lane.to(tl.int64), mine)
    tl.store(table_rows + row, lane, mine)
    tl.store(starts + row, start, mine)
    tl.store(live + row, 1, mine)
    tl.store(slots + row, slot.to(tl.int64), mine)
    tl.store(targets + row, target.to(tl.int64), mine)
    for axis in tl.static_range(3):
        tl.store(positions + axis * count + row, start + delta, mine)
    tl.store(chosen + row, start + 1, mine)

    changes = source + HEADER + ROW * most_lanes
    changed = tl.minimum(changed, most_changes)
    for first in range(0, changed, CHANGES):
        index = first + tl.arange(0, CHANGES)
        inside = index < changed
        at = tl.load(changes + CHANGE * index, inside, other=0, cache_modifier=".cv")
        column = tl.load(changes + CHANGE * index + 1, inside, other=0, cache_modifier=".cv")
        page = tl.load(changes + CHANGE * index + 2, inside, other=0, cache_modifier=".cv")
        where = tl.where(inside, at.to(tl.int64) * pages + column, -1)
        later = (where[:, None] == where[None, :]) & (index[None, :] > index[:, None])
        inside = inside & (tl.max(later.to(tl.int32), 1) == 0)
        tl.store(block_tables + where, page, inside)
        tl.debug_barrier()


@triton.jit
def publish(
    egress,
    counter,
    next_tokens,
    lanes,
    generated,
    tokens,
    broken,
    depth,
    answers,
    vocabulary,
    count,
    ROWS: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """Leaves tokens where the next round and the host look for them; the flag, then the counter."""
    lib.release_dependents(PDL)
    row = tl.arange(0, ROWS)
    mine = row < count
    lib.await_inputs(PDL)
    round_number = tl.load(counter)
    answer = egress + (round_number % depth) * answers
    lane = tl.load(lanes + row, mine, other=0)
    token = tl.load(tokens + row, mine, other=0)
    bad = tl.load(broken + row, mine, other=0)
    tl.store(answer + EGRESS_HEADER + EGRESS_ROW * row, token, mine)
    tl.store(answer + EGRESS_HEADER + EGRESS_ROW * row + 1, bad.to(tl.int32), mine)
    tl.store(answer + 2, count)
    tl.store(next_tokens + lane, token, mine)
    tl.atomic_add(generated + lane * vocabulary + token, 1, mask=mine, sem="relaxed")
    tl.debug_barrier()
    raise_flag(answer, round_number + 1, INTERPRET)
    tl.store(counter, round_number + 1)


@triton.jit
def raise_flag(flag, value, INTERPRET: tl.constexpr):
    """Store after everything that this program wrote, and earlier kernels, is visible to the host.

    The barrier before the call orders the other threads' writes; the fence carries them along.
    """
    if INTERPRET:
        tl.store(flag, value)
    else:
        tl.inline_asm_elementwise(
            "fence.acq_rel.sys; st.relaxed.sys.global.b32 [$1], $2; mov.b32 $0, $2;",
            "=r,l,r,~{memory}",
            [flag, value],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
