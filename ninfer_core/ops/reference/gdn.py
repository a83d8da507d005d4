"""The gated delta rule token by token: gates, step, verify, fold.

Step and verify read the state by the same products, one sequence at a time or several where a trial
shows equal bits. Step and fold write it by the same products.
What lies between is sums and products of single elements, which round alike everywhere, and exp,
which ATen computes by vector code throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ninfer_core.ops.contracts.values import GdnRecords
from ninfer_core.ops.reference.lanes import whole_lanes, widen
from ninfer_core.ops.reference.norm import constant

_L2_EPS = 1e-6
_TRIED_SEQUENCES = 8


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
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    slots: Tensor,
    targets: Tensor,
    key_heads: int,
) -> Tensor:
    tokens = prepare_tokens(qkv, decay, beta, state, key_heads)
    sources, places = slots.tolist(), targets.tolist()
    runs = list(_runs(sources, places))
    outputs, updates = _read(_stretches(state, sources, runs), tokens)
    grouped = by_key_head(state, key_heads)
    factors = _shaped(tokens.keys, updates, tokens.keep)
    for first, count in runs:
        source = grouped.narrow(0, sources[first], count)
        target = grouped.narrow(0, places[first], count)
        _advance(source, target, *(x.narrow(0, first, count) for x in factors))
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
        outputs, updates = _read_ahead(states, columns)
    _record(records, slots, tokens, updates, width)
    return outputs


def gdn_fold(
    state: Tensor,
    slots: Tensor,
    records: GdnRecords,
    counts: Tensor,
    targets: Tensor | None = None,
) -> None:
    width, key_heads = records.keys.shape[1:3]
    grouped = by_key_head(state, key_heads)
    kept = (pool.index_select(0, slots) for pool in (records.keys, records.updates, records.keep))
    factors = [x.flatten(0, 1) for x in kept]
    rows = list(_factors(factors[0], factors[1], factors[2].unsqueeze(-1)))
    places = slots if targets is None else targets
    listed = zip(slots.tolist(), counts.tolist(), places.tolist(), strict=True)
    for sequence, (slot, count, target) in enumerate(listed):
        source = slot
        for row in rows[sequence * width : sequence * width + count]:
            _advance(grouped[source], grouped[target], *row)
            source = target
        if source != target:
            grouped[target].copy_(grouped[source])


def prepare_tokens(
    qkv: Tensor, decay: Tensor, beta: Tensor, state: Tensor, key_heads: int
) -> Tokens:
    """Split qkv [T, C], normalise queries and keys, and spread them over the value heads."""
    count = qkv.shape[0]
    _, value_heads, dk, dv = state.shape
    qk, values = widen(qkv).split_with_sizes([2 * key_heads * dk, value_heads * dv], dim=1)
    raw = qk.view(count, 2, key_heads, dk)
    length: Tensor = torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
    pairs = raw * length.square_().add_(constant(_L2_EPS, raw.dtype)).rsqrt_()
    queries, keys = pairs.unbind(1)
    queries.mul_(constant(dk**-0.5, raw.dtype))
    overlap = (queries * keys).sum(-1)
    return Tokens(
        _spread(pairs.transpose(1, 2), value_heads),
        keys,
        values.view(count, value_heads, dv),
        _spread(overlap, value_heads).unsqueeze(-1),
        decay.exp().unsqueeze(-1),
        beta.unsqueeze(-1),
    )


def _spread(x: Tensor, value_heads: int) -> Tensor:
    """[T, nk, ...] → [T, nv, ...]: value head j takes key head j // (nv / nk)."""
    tokens, key_heads, *rest = x.shape
    shared = x.unsqueeze(2).expand(tokens, key_heads, value_heads // key_heads, *rest)
    return shared.reshape(tokens, value_heads, *rest)


def _read(states: Sequence[Tensor], tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Outputs and updates u [B, nv, dv] of one token per sequence; no state is written.

    ``states`` are the sequences' [nv, dk, dv] in order, or stretches of several, [n * nv, dk, dv].
    With ``S' = keep S + k u^T`` both products use S: ``S'^T q = keep S^T q + (k . q) u``.
    """
    stacked = tokens.qk.flatten(0, 1)
    rows = stacked.split_with_sizes([state.shape[0] for state in states])
    products = [torch.bmm(qk, state) for qk, state in zip(rows, states, strict=True)]
    joined = products[0] if len(products) == 1 else torch.cat(products)
    reads = joined.view(*tokens.qk.shape[:3], -1) * tokens.keep.unsqueeze(-1)
    updates = (tokens.values - reads[:, :, 1]).mul_(tokens.beta)
    return (tokens.overlap * updates).add_(reads[:, :, 0]), updates


def _stretches(state: Tensor, slots: list[int], runs: list[tuple[int, int]]) -> list[Tensor]:
    """The states of ``slots`` for :func:`_read`: run by run where that gives the bits of single
    sequences, else one by one."""
    if not _stacks_agree(tuple(state.shape[1:]), state.dtype, torch.get_num_threads()):
        return [state[slot] for slot in slots]
    return [state.narrow(0, slots[first], count).flatten(0, 1) for first, count in runs]


@lru_cache
def _stacks_agree(shape: tuple[int, ...], dtype: torch.dtype, threads: int) -> bool:
    """Whether a batched product of several sequences has the bits of each alone: tried, since it
    is not promised. ``shape`` is a state's [nv, dk, dv]; ``threads`` only tells trials apart."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(_TRIED_SEQUENCES, *shape, generator=generator, dtype=dtype)
    qk = torch.randn(_TRIED_SEQUENCES, shape[0], 2, shape[1], generator=generator, dtype=dtype)
    alone = torch.cat([torch.bmm(a, b) for a, b in zip(qk, states, strict=True)])
    counts = range(2, _TRIED_SEQUENCES + 1)
    stacks = [torch.bmm(qk[:n].flatten(0, 1), states[:n].flatten(0, 1)) for n in counts]
    return all(torch.equal(stack, alone[: stack.shape[0]]) for stack in stacks)


def by_key_head(state: Tensor, key_heads: int) -> Tensor:
    """[S, nv, dk, dv] → [S, nk, nv / nk, dk, dv]."""
    return state.view(state.shape[0], key_heads, -1, *state.shape[2:])


def _factors(
    keys: Tensor, updates: Tensor, keep: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Per row, what :func:`_advance` takes."""
    return zip(*(x.unbind() for x in _shaped(keys, updates, keep)), strict=True)


def _shaped(keys: Tensor, updates: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[R, nk, dk], [R, nv, dv] and [R, nv, 1] so that they broadcast over R states by key head."""
    rows, key_heads, dk = keys.shape
    return (
        keys.view(rows, key_heads, 1, dk, 1),
        updates.view(rows, key_heads, -1, 1, updates.shape[2]),
        keep.reshape(rows, key_heads, -1, 1, 1),
    )


def _runs(sources: list[int], targets: list[int]) -> Iterator[tuple[int, int]]:
    """First row and length of each stretch of rows whose slots and targets both count up by one.

    Such a stretch is one slice of the pool: written by one call, element by element as alone.
    """
    first = 0
    for row in range(1, len(sources) + 1):
        ended = row == len(sources) or (
            sources[row] != sources[row - 1] + 1 or targets[row] != targets[row - 1] + 1
        )
        if ended:
            yield first, row - first
            first = row


def _advance(state: Tensor, target: Tensor, key: Tensor, update: Tensor, keep: Tensor) -> None:
    """``target = keep S + k u^T``, all of them by key head: state [..., nk, nv / nk, dk, dv]."""
    torch.mul(state, keep, out=target).addcmul_(key, update)


def _read_ahead(states: Sequence[Tensor], columns: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """Several tokens per sequence, advancing copies of the states: two of [B * W, nv, dv]."""
    copies = torch.stack(list(states))
    grouped = by_key_head(copies, columns[0].keys.shape[1])
    results = []
    for column, tokens in enumerate(columns):
        results.append(_read(copies.unbind(), tokens))
        if column + 1 < len(columns):
            rows = _factors(tokens.keys, results[-1][1], tokens.keep)
            for state, row in zip(grouped, rows, strict=True):
                _advance(state, state, *row)
    outputs, updates = (torch.stack(parts, dim=1) for parts in zip(*results, strict=True))
    return outputs.flatten(0, 1), updates.flatten(0, 1)


def _record(
    records: GdnRecords, slots: Tensor, tokens: Tokens, updates: Tensor, width: int
) -> None:
    kept = ((records.keys, tokens.keys), (records.updates, updates), (records.keep, tokens.keep))
    for pool, rows in kept:
        shaped = rows.reshape(slots.shape[0], width, *pool.shape[2:])
        pool[:, :width].index_copy_(0, slots, shaped)
