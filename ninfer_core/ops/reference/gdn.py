"""The gated delta rule token by token: gates, step, verify, fold.

Step and verify read the state by the same products, one sequence at a time: the same shapes, so
the same kernels and the same bits, whatever the batch. Step and fold write it by the same products.
What lies between is sums and products of single elements, which round alike everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ninfer_core.ops.contracts.values import GdnRecords
from ninfer_core.ops.reference.lanes import whole_lanes, widen
from ninfer_core.ops.reference.norm import inverse_length

_L2_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Tokens:
    """T tokens, ready for the recurrence.

    ``qk`` [T, nv, 2, dk] scaled queries and normalised keys of each value head, ``keys``
    [T, nk, dk], ``values`` [T, nv, dv]; ``overlap`` (q . k), ``keep`` (exp of the decay) and
    ``beta`` [T, nv, 1].
    """

    qk: Tensor
    keys: Tensor
    values: Tensor
    overlap: Tensor
    keep: Tensor
    beta: Tensor

    def rows(self, which: slice) -> Tokens:
        return Tokens(*(getattr(self, name)[which] for name in Tokens.__slots__))


def gdn_gates(a: Tensor, b: Tensor, decay_rate: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    decay = whole_lanes(softplus, widen(a) + dt_bias).mul_(-decay_rate)
    return decay, whole_lanes(torch.sigmoid, widen(b))


def gdn_step(
    qkv: Tensor, decay: Tensor, beta: Tensor, state: Tensor, slots: Tensor, key_heads: int
) -> Tensor:
    tokens = prepare_tokens(qkv, decay, beta, state, key_heads)
    states = [state[slot] for slot in slots.tolist()]
    outputs, updates = _read(states, tokens)
    _write(states, tokens.keys, updates, tokens.keep)
    return outputs


def gdn_verify(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    slots: Tensor,
    key_heads: int,
    records: GdnRecords,
) -> Tensor:
    tokens = prepare_tokens(qkv, decay, beta, state, key_heads)
    width = qkv.shape[0] // slots.shape[0]
    states = [state[slot] for slot in slots.tolist()]
    if width == 1:
        outputs, updates = _read(states, tokens)
    else:
        columns = [tokens.rows(slice(column, None, width)) for column in range(width)]
        outputs, updates = _read_ahead([state.clone() for state in states], columns)
    _record(records, slots, tokens, updates, width)
    return outputs


def gdn_fold(state: Tensor, slots: Tensor, records: GdnRecords, counts: Tensor) -> None:
    for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
        taken = (records.keys[slot, :count], records.updates[slot, :count])
        keep = records.keep[slot, :count].unsqueeze(-1)
        _write([state[slot]] * count, *taken, keep)


def prepare_tokens(
    qkv: Tensor, decay: Tensor, beta: Tensor, state: Tensor, key_heads: int
) -> Tokens:
    """Split qkv [T, C], normalise queries and keys, and spread them over the value heads."""
    count = qkv.shape[0]
    _, value_heads, dk, dv = state.shape
    qk, values = widen(qkv).split_with_sizes([2 * key_heads * dk, value_heads * dv], dim=1)
    pairs = qk.view(count, 2, key_heads, dk)
    pairs = pairs * inverse_length(pairs, 1.0, _L2_EPS)
    queries, keys = pairs.unbind(1)
    queries.mul_(dk**-0.5)
    overlap = (queries * keys).sum(-1, keepdim=True)
    return Tokens(
        _spread(pairs.transpose(1, 2), value_heads),
        keys,
        values.view(count, value_heads, dv),
        _spread(overlap, value_heads),
        whole_lanes(torch.exp, decay).unsqueeze(-1),
        beta.unsqueeze(-1),
    )


def _spread(x: Tensor, value_heads: int) -> Tensor:
    """[T, nk, ...] → [T, nv, ...]: value head j takes key head j // (nv / nk)."""
    tokens, key_heads, *rest = x.shape
    shared = x.unsqueeze(2).expand(tokens, key_heads, value_heads // key_heads, *rest)
    return shared.reshape(tokens, value_heads, *rest)


def _read(states: Sequence[Tensor], tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Outputs and updates u [B, nv, dv] of one token per state [nv, dk, dv], which stays as it is.

    With ``S' = keep S + k u^T`` both products use S: ``S'^T q = keep S^T q + (k . q) u``.
    """
    products = [torch.bmm(qk, state) for qk, state in zip(tokens.qk, states, strict=True)]
    reads = torch.stack(products).mul_(tokens.keep.unsqueeze(-1))
    updates = (tokens.values - reads[:, :, 1]).mul_(tokens.beta)
    return (tokens.overlap * updates).add_(reads[:, :, 0]), updates


def _write(states: Sequence[Tensor], keys: Tensor, updates: Tensor, keep: Tensor) -> None:
    """Advance each state [nv, dk, dv] by one token of keys [B, nk, dk], updates [B, nv, dv]."""
    if not states:
        return
    grouped = keys.shape[1], -1, *states[0].shape[1:]
    factors = zip(keys[:, :, None, :, None], updates.unsqueeze(2), keep.unsqueeze(2), strict=True)
    for state, (key, update, kept) in zip(states, factors, strict=True):
        state.mul_(kept)
        state.view(grouped).addcmul_(key, update.view(keys.shape[1], -1, 1, update.shape[-1]))


def _read_ahead(copies: Sequence[Tensor], columns: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """Several tokens per sequence, advancing copies of the states: two of [B * W, nv, dv]."""
    results = []
    for column, tokens in enumerate(columns):
        results.append(_read(copies, tokens))
        if column + 1 < len(columns):
            _write(copies, tokens.keys, results[-1][1], tokens.keep)
    outputs, updates = (torch.stack(parts, dim=1) for parts in zip(*results, strict=True))
    return outputs.flatten(0, 1), updates.flatten(0, 1)


def _record(
    records: GdnRecords, slots: Tensor, tokens: Tokens, updates: Tensor, width: int
) -> None:
    kept = ((records.keys, tokens.keys), (records.updates, updates), (records.keep, tokens.keep))
    for pool, rows in kept:
        shaped = rows.reshape(slots.shape[0], width, *pool.shape[2:])
        pool[:, :width].index_copy_(0, slots, shaped)
