"""Log-probabilities of the model's own law, and orders whose ties go to the lower id."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import LogprobRows
from ninfer_core.ops.reference.lanes import widen


def logprobs(logits: Tensor, tokens: Tensor, top: int) -> LogprobRows:
    law = widen(logits).log_softmax(-1)
    chosen = law.gather(1, tokens.long().unsqueeze(1)).squeeze(1)
    if not top:
        empty = law.new_empty(law.shape[0], 0)
        return LogprobRows(chosen, empty.int(), empty)
    ids = torch.stack([best_first(row, top_ids(row, top)) for row in law])
    return LogprobRows(chosen, ids.int(), law.gather(1, ids))


def join_rows(parts: Sequence[LogprobRows]) -> LogprobRows:
    """One value from the values of consecutive rows."""
    return LogprobRows(
        torch.cat([part.chosen for part in parts]),
        torch.cat([part.top_ids for part in parts]),
        torch.cat([part.top_values for part in parts]),
    )


def top_ids(row: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` largest of row [V], ties to the lower id, in ascending order: i64."""
    if count >= row.shape[0]:
        return torch.arange(row.shape[0])
    least = torch.topk(row, count).values[-1]
    ids = (row >= least).nonzero().squeeze(1)
    if ids.shape[0] == count:
        return ids
    above = (row > least).nonzero().squeeze(1)
    tied = (row == least).nonzero().squeeze(1)[: count - above.shape[0]]
    return torch.cat([above, tied]).sort().values


def best_first(row: Tensor, ids: Tensor) -> Tensor:
    """Ascending ``ids`` reordered by descending value, ties still ascending."""
    return ids[row[ids].argsort(descending=True, stable=True)]
