"""Log-probabilities, acceptance of drafts and counts, as torch code on the device.

Nothing here waits for the device or looks at a value on the host, so all of it can be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from ninfer_core.ops.contracts.values import (
    Acceptance,
    DraftLaw,
    DrawPurpose,
    LogprobRows,
    TokenCounts,
)
from ninfer_core.ops.reference.logits import nonfinite_rows
from ninfer_ops_triton import draws
from ninfer_ops_triton.kernels import argmax, philox
from ninfer_ops_triton.launch import launch
from ninfer_ops_triton.laws import sampling_law

FULL = float(1 << 44)
"""A probability of 1 as a whole mass: sums over a vocabulary stay below 2^62."""


AT_ONCE = 8
"""Rows whose log-probabilities are listed at a time: what that needs beside does not grow with all
rows of a round."""


def logprobs(logits: Tensor, tokens: Tensor, top: int) -> LogprobRows:
    made = [_logprobs(logits[part], tokens[part], top) for part in _parts(logits.shape[0])]
    if len(made) == 1:
        return made[0]
    return LogprobRows(
        torch.cat([rows.chosen for rows in made]),
        torch.cat([rows.top_ids for rows in made]),
        torch.cat([rows.top_values for rows in made]),
    )


def _logprobs(logits: Tensor, tokens: Tensor, top: int) -> LogprobRows:
    law = logits.float().log_softmax(1)
    chosen = law.gather(1, tokens.long().unsqueeze(1)).squeeze(1)
    if not top:
        empty = law.new_empty((law.shape[0], 0))
        return LogprobRows(chosen, empty.int(), empty)
    # Distinct integers in the order asked for: topk alone may take any of equal values.
    ids = _codes(law).topk(min(top, law.shape[1]), dim=1).indices
    return LogprobRows(chosen, ids.int(), law.gather(1, ids))


def accept_drafts(
    laws: Tensor,
    drafts: Tensor,
    live: Tensor,
    draft_law: DraftLaw | None,
    seeds: Tensor,
    positions: Tensor,
) -> Acceptance:
    target = laws.view(drafts.shape[0], drafts.shape[1] + 1, -1)
    if draft_law is None:
        return _match(target, drafts, live, seeds, positions)
    return _test(target, drafts, live, draft_law, seeds, positions)


def count_tokens(counts: TokenCounts, lanes: Tensor, tokens: Tensor, accepted: Tensor) -> None:
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    taken = columns < accepted.unsqueeze(1)
    places = lanes.unsqueeze(1) * counts.generated.shape[1] + tokens.masked_fill(~taken, 0)
    counts.generated.view(-1).index_add_(0, places.flatten(), taken.flatten().int())


def numbers(seeds: Tensor, positions: Tensor, purpose: DrawPurpose) -> Tensor:
    """The 24 bits of uniform numbers, i64 of positions' length: a multiple of that of seeds."""
    count = positions.shape[0]
    out = torch.empty(count, dtype=torch.int64, device=positions.device)
    launch(
        philox.numbers, (1,), seeds, positions, out, int(purpose), count // seeds.shape[0], count,
        BLOCK=triton.next_power_of_2(count), dependent=True,
    )  # fmt: skip
    return out


def _match(
    target: Tensor, drafts: Tensor, live: Tensor, seeds: Tensor, positions: Tensor
) -> Acceptance:
    """One-hot drafts: draw as plain decoding would; a draft stands while it is what was drawn."""
    shape = target.shape[:2]
    drawn = _draw(target, numbers(seeds, positions, DrawPurpose.DECODE).view(shape))
    accepted = _leading(drawn[:, :-1] == drafts, live)
    tokens = drawn.gather(1, accepted.unsqueeze(1)).squeeze(1)
    return Acceptance(accepted.int(), tokens.int())


def _test(
    target: Tensor, drafts: Tensor, live: Tensor, q: DraftLaw, seeds: Tensor, positions: Tensor
) -> Acceptance:
    """Drafts drawn from q: accept with min(1, p/q), else draw from what q left over."""
    shape = target.shape[:2]
    accept, correction, bonus = (
        numbers(seeds, positions, purpose).view(shape)
        for purpose in (DrawPurpose.ACCEPT, DrawPurpose.CORRECTION, DrawPurpose.BONUS)
    )
    chosen = drafts.long().clamp_min(0).unsqueeze(2)
    p_draft = target[:, :-1].gather(2, chosen).squeeze(2)
    q_draft = q.probs.masked_fill(q.ids != chosen, 0).sum(2)
    accepted = _leading(accept[:, :-1].float() * 2.0**-24 * q_draft < p_draft, live)
    law = _at(target, accepted)
    last = accepted.clamp_max(drafts.shape[1] - 1)
    rest = (law - _dense(_at(q.ids, last), _at(q.probs, last), law.shape[1])).clamp_min(0)
    rejected = accepted < live
    left = rejected & (rest.sum(1) > 0)
    place = accepted.unsqueeze(1)
    tokens = _draw(
        torch.where(left.unsqueeze(1), rest, law),
        torch.where(rejected.unsqueeze(1), correction.gather(1, place), bonus.gather(1, place))
        .squeeze(1),
    )  # fmt: skip
    return Acceptance(accepted.int(), tokens.int())


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """First index whose cumulated weight exceeds the number's share of the sum; 0 without mass.

    weights [..., V], the numbers' 24 bits i64[...]. Masses are whole, so sums have no rounding that
    could depend on how a device adds.
    """
    sums = _masses(weights).cumsum(-1)
    total = sums[..., -1:]
    bits = uniform.unsqueeze(-1)
    wanted = bits * (total >> 24) + ((bits * (total & 0xFFFFFF)) >> 24)
    index = torch.searchsorted(sums, wanted, right=True).squeeze(-1)
    return index.masked_fill(index == weights.shape[-1], 0)


def _masses(weights: Tensor) -> Tensor:
    """Weights up to 1 in whole units of 2^-44, i64; NaN is none."""
    return (weights.double() * FULL).nan_to_num(0.0).long()


def _at(rows: Tensor, places: Tensor) -> Tensor:
    """``rows[b, places[b]]`` of [B, K, V]."""
    index = places.view(-1, 1, 1).expand(-1, 1, rows.shape[2])
    return rows.gather(1, index).squeeze(1)


def _leading(passed: Tensor, live: Tensor) -> Tensor:
    """How many of the first ``live`` columns of bool[B, K] pass before one fails: i64[B]."""
    columns = torch.arange(passed.shape[1], device=passed.device)
    return (passed & (columns < live.unsqueeze(1))).long().cumprod(1).sum(1)


def _dense(ids: Tensor, probs: Tensor, vocabulary: int) -> Tensor:
    """f32[B, V] of laws on their support i32[B, M]."""
    dense = probs.new_zeros((probs.shape[0], vocabulary))
    return dense.scatter_add_(1, ids.clamp_min(0).long(), probs.masked_fill(ids < 0, 0))


def _parts(rows: int) -> list[slice]:
    """Of so many rows, in order; one where there is none."""
    return [slice(first, first + AT_ONCE) for first in range(0, max(1, rows), AT_ONCE)]


def _codes(values: Tensor) -> Tensor:
    """fp32 [T, V] as distinct i64, ordered by value, ties by lower id first; see kernels/argmax."""
    bits = (values + 0.0).view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    ids = torch.arange(values.shape[1], device=values.device)
    codes: Tensor = (keys << argmax.ID_BITS.value) | (argmax.LAST_ID.value - ids)
    return codes


OPS: dict[str, Callable[..., Any]] = {
    # The reference neither waits nor branches on values: one piece of code for one job.
    "nonfinite_rows": nonfinite_rows,
    "process_logits": draws.process_logits,
    "sampling_law": sampling_law,
    "sample_tokens": draws.sample_tokens,
    "argmax_rows": draws.argmax_rows,
    "draw_rows": draws.draw_rows,
    "logprobs": logprobs,
    "accept_drafts": accept_drafts,
    "count_tokens": count_tokens,
}
