"""Around the rounds that verify drafts. All but the fold's kernel are one program of one warp."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_core.ops.contracts import verifying as contract
from ninfer_ops_triton.kernels.lib import await_inputs, release_dependents

TOKEN = tl.constexpr(contract.TOKEN)
START = tl.constexpr(contract.START)
REMAINING = tl.constexpr(contract.REMAINING)
TAKEN = tl.constexpr(contract.TAKEN)
LAST = tl.constexpr(contract.LAST)
LIVE = tl.constexpr(contract.LIVE)
DRAFTS = tl.constexpr(contract.DRAFTS)
PLAIN = tl.constexpr(contract.Behind.PLAIN.value)
SPECULATIVE = tl.constexpr(contract.Behind.SPECULATIVE.value)


@triton.jit(do_not_specialize=["count", "width", "words"])
def resolve(
    ids, starts, live, deltas, slots, lanes, remaining, behind, kept, tokens,
    own_ids, own_starts, own_live, own_remaining, own_slots, positions, own_lanes, chosen,
    count, width, words,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``count`` rows of ``width`` columns; ``words`` of each lane are kept."""
    release_dependents(PDL)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)[None, :]
    mine = row < count
    inside = mine[:, None] & (column < width)
    at = row[:, None] * width + column
    await_inputs(PDL)
    lane = tl.load(lanes + row, mine, other=0).to(tl.int64)
    after = tl.load(behind + row, mine, other=0)
    start = tl.load(starts + row, mine, other=0)
    alive = tl.load(live + row, mine, other=0)
    left = tl.load(remaining + row, mine, other=0)
    delta = tl.load(deltas + row, mine, other=0)
    token = tl.load(ids + at, inside, other=0)
    tl.store(own_slots + row, tl.load(slots + row, mine, other=0).to(tl.int64), mine)
    known, drawn = mine & (after == SPECULATIVE), mine & (after == PLAIN)
    own = kept + lane * words
    start = tl.where(known, tl.load(own + START, known, other=0), start)
    tl.store(own_starts + row, start, mine)
    tl.store(own_live + row, tl.where(known, tl.load(own + LIVE, known, other=0), alive), mine)
    left = tl.where(known, tl.load(own + REMAINING, known, other=0), left)
    tl.store(own_remaining + row, left, mine)

    first = tl.load(tokens + lane, drawn, other=0) + tl.load(own + TOKEN, known, other=0)
    drafted = inside & known[:, None] & (column > 0)
    draft = tl.load(own[:, None] + (DRAFTS - 1) + column, drafted, other=0)
    token = tl.where(known[:, None], draft, token)
    token = tl.where((known | drawn)[:, None] & (column == 0), first[:, None], token)
    tl.store(own_ids + at, token, inside)
    place = start[:, None] + column
    tl.store(chosen + at, place + 1, inside)
    tl.store(own_lanes + at, tl.broadcast_to(lane[:, None], ROWS, COLUMNS), inside)
    for axis in tl.static_range(3):
        tl.store(positions + axis * (count * width) + at, place + delta[:, None], inside)


@triton.jit(do_not_specialize=["count", "width", "drafts", "words", "vocabulary"])
def settle(
    tokens, broken, ids, starts, live, deltas, lanes, remaining, most, places,
    answer_tokens, answer_broken, answer_accepted,
    next_tokens, last, next_starts, next_live, next_tables, positions, kept, generated,
    count, width, drafts, words, vocabulary,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, COUNTED: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``count`` rows of ``width`` verified columns; ``drafts`` new ones in a BLOCK of one column
    more, or each at a place of its own."""
    release_dependents(PDL)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)[None, :]
    mine = row < count
    inside = mine[:, None] & (column < width)
    at = row[:, None] * width + column
    await_inputs(PDL)
    alive = tl.load(live + row, mine, other=0)
    drawn = tl.load(tokens + at, inside, other=0)
    bad = tl.load(broken + at, inside, other=0).to(tl.int32)
    behind = mine[:, None] & (column + 1 < width)
    given = tl.load(ids + at + 1, behind, other=0)
    worse = tl.load(broken + at + 1, behind, other=0).to(tl.int32)
    lane = tl.load(lanes + row, mine, other=0)
    start = tl.load(starts + row, mine, other=0)
    delta = tl.load(deltas + row, mine, other=0)
    left = tl.load(remaining + row, mine, other=0)
    worth = tl.load(most + row, mine, other=0)
    place = tl.load(places + row, mine, other=0)
    tl.store(answer_tokens + at, drawn, inside)
    tl.store(answer_broken + at, bad, inside)
    lost = tl.sum(tl.where(column == 0, bad, 0), 1)
    same = behind & (drawn == given) & (column + 1 < alive[:, None])
    same = same & (worse + lost[:, None] == 0)
    accepted = tl.min(tl.where(same, COLUMNS, tl.broadcast_to(column, ROWS, COLUMNS)), 1)
    tl.store(answer_accepted + row, accepted, mine)
    token = tl.sum(tl.where(column == accepted[:, None], drawn, 0), 1)
    tl.store(next_tokens + row, token, mine)
    tl.store(last + row, (place + accepted).to(tl.int64), mine)
    if COUNTED:
        taken = inside & (column <= accepted[:, None])
        counted = generated + lane.to(tl.int64)[:, None] * vocabulary + drawn
        tl.atomic_add(counted, 1, mask=taken, sem="relaxed")

    first = start + accepted + 1
    own = kept + lane.to(tl.int64) * words
    tl.store(own + TOKEN, token, mine)
    tl.store(own + START, first, mine)
    tl.store(own + REMAINING, left - accepted - 1, mine)
    tl.store(own + TAKEN, accepted + 1, mine)
    tl.store(own + LAST, place + accepted, mine)
    tl.store(own + LIVE, tl.full([ROWS], 1, tl.int32), mine)

    wanted = tl.minimum(left - accepted - 2, worth)
    wanted = tl.minimum(tl.maximum(wanted, 0), drafts)
    if BLOCK:
        tl.store(next_starts + row, first, mine)
        tl.store(next_live + row, wanted + (wanted > 0).to(tl.int32), mine)
        tl.store(next_tables + row, lane, mine)
        wide = drafts + 1
        made = mine[:, None] & (column < wide)
        to = row[:, None] * wide + column
        axis = count * wide
    else:
        made = mine[:, None] & (column < drafts)
        to = column * count + row[:, None]
        tl.store(next_starts + to, first[:, None] + column, made)
        tl.store(next_live + to, (wanted[:, None] > column).to(tl.int32), made)
        tl.store(next_tables + to, tl.broadcast_to(lane[:, None], ROWS, COLUMNS), made)
        axis = count * drafts
    where = (first + delta)[:, None] + column
    for turn in tl.static_range(3):
        tl.store(positions + turn * axis + to, where, made)


@triton.jit(do_not_specialize=["count", "made", "drafted", "stride", "places", "words"])
def keep(
    drafts, live, lanes, kept, answer, count, made, drafted, stride, places, words,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``made`` drafts of each row, ``stride`` apart, into the first columns of ``drafted``."""
    release_dependents(PDL)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)[None, :]
    mine = row < count
    inside = mine[:, None] & (column < made)
    await_inputs(PDL)
    lane = tl.load(lanes + row, mine, other=0)
    draft = tl.load(drafts + row[:, None] * stride + column, inside, other=0)
    if BLOCK:
        rows = tl.maximum(tl.load(live + row, mine, other=0), 1)
    else:
        there = mine[:, None] & (column < places)
        rows = tl.sum(tl.load(live + column * count + row[:, None], there, other=0), 1) + 1
    own = kept + lane.to(tl.int64) * words
    tl.store(own + LIVE, rows, mine)
    tl.store(own[:, None] + DRAFTS + column, draft, inside)
    tl.store(answer + row[:, None] * drafted + column, draft, inside)


@triton.jit(do_not_specialize=["words"])
def fold_rows(
    slots, targets, lanes, counts, last, kept, hidden, pool, own_slots, own_targets, own_counts,
    words, width, HIDDEN: tl.constexpr, BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (B, blocks of a hidden row)."""
    release_dependents(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    await_inputs(PDL)
    own = kept + tl.load(lanes + row).to(tl.int64) * words
    target = tl.load(targets + row).to(tl.int64)
    if block == 0:
        count = tl.load(counts + row)
        tl.store(own_slots + row, tl.load(slots + row).to(tl.int64))
        tl.store(own_targets + row, target)
        tl.store(own_counts + row, tl.where(count < 0, tl.load(own + TAKEN), count))
    if HIDDEN:
        stated = tl.load(last + row)
        place = tl.where(stated < 0, tl.load(own + LAST), stated).to(tl.int64)
        column = block * BLOCK + tl.arange(0, BLOCK)
        there = column < width
        values = tl.load(hidden + place * width + column, there, other=0.0)
        tl.store(pool + target * width + column, values, there)
