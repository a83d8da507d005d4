"""The gated delta rule token by token: gates, step, verify, fold.

Step, verify and fold share :func:`_advance`, always called with one token of one sequence: the same
shapes, so the same kernels and the same bits, whatever the batch and whichever form runs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ninfer_core.ops.contracts.values import GdnRecords
from ninfer_core.ops.reference.lanes import compute_dtype, whole_lanes

_L2_EPS = 1e-6


def gdn_gates(a: Tensor, b: Tensor, decay_rate: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    wide = compute_dtype(a)
    decay = whole_lanes(softplus, a.to(wide) + dt_bias) * -decay_rate
    return decay, whole_lanes(torch.sigmoid, b.to(wide))


def gdn_step(
    qkv: Tensor, decay: Tensor, beta: Tensor, state: Tensor, slots: Tensor, key_heads: int
) -> Tensor:
    kq, values = split_heads(qkv, state, key_heads)
    tokens = _tokens(kq, values, decay, beta)
    return torch.stack(
        [_advance(state[slot], *token) for slot, token in zip(slots.tolist(), tokens, strict=True)]
    )


def gdn_verify(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    slots: Tensor,
    key_heads: int,
    records: GdnRecords,
) -> Tensor:
    _record(records, slots, qkv, decay, beta)
    kq, values = split_heads(qkv, state, key_heads)
    tokens = iter(_tokens(kq, values, decay, beta))
    width = qkv.shape[0] // slots.shape[0]
    outputs = []
    for slot in slots.tolist():
        ahead = state[slot].clone()
        outputs += [_advance(ahead, *next(tokens)) for _ in range(width)]
    return torch.stack(outputs)


def gdn_fold(
    state: Tensor, slots: Tensor, key_heads: int, records: GdnRecords, counts: Tensor
) -> None:
    for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
        if not count:
            continue
        kv = records.kv[slot, :count]
        unread = kv.new_zeros(count, key_heads * state.shape[2])
        kq, values = split_heads(torch.cat([unread, kv], dim=1), state, key_heads)
        gates = records.decay[slot, :count], records.beta[slot, :count]
        for token in _tokens(kq, values, *gates):
            _advance(state[slot], *token)


def split_heads(qkv: Tensor, state: Tensor, key_heads: int) -> tuple[Tensor, Tensor]:
    """Normalised keys and scaled queries per value head, kq [T, nv, 2, dk]; values [T, nv, dv]."""
    tokens = qkv.shape[0]
    _, value_heads, dk, dv = state.shape
    wide = qkv.to(state.dtype)
    qk, values = wide.split_with_sizes([2 * key_heads * dk, value_heads * dv], dim=1)
    unit = torch.rms_norm(qk.view(tokens, 2, key_heads, dk), (dk,), eps=_L2_EPS / dk)
    shared = torch.stack([unit[:, 1] * dk**-0.5, unit[:, 0] * (1.0 / dk)], dim=2)
    kq = shared.repeat_interleave(value_heads // key_heads, dim=1)
    return kq, values.reshape(tokens, value_heads, dv)


def _tokens(
    kq: Tensor, values: Tensor, decay: Tensor, beta: Tensor
) -> list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """The operands of :func:`_advance`, token by token."""
    keep = whole_lanes(torch.exp, decay).unsqueeze(-1)
    overlap = (kq[:, :, 0] * kq[:, :, 1]).sum(-1, keepdim=True)
    columns = (kq, values, keep, beta.unsqueeze(-1), overlap)
    return list(zip(*(column.unbind() for column in columns), strict=True))


def _advance(
    state: Tensor, kq: Tensor, value: Tensor, keep: Tensor, beta: Tensor, overlap: Tensor
) -> Tensor:
    """One token in place: state [nv, dk, dv], kq [nv, 2, dk], value [nv, dv], the rest [nv, 1].

    With ``S' = keep S + k u^T`` both reads of the state use S: ``S'^T q = keep S^T q + (k.q) u``.
    """
    reads = torch.bmm(kq, state) * keep.unsqueeze(-1)
    update = (value - reads[:, 0]) * beta
    state.mul_(keep.unsqueeze(-1)).addcmul_(kq[:, 0].unsqueeze(-1), update.unsqueeze(1))
    return reads[:, 1] + overlap * update


def _record(records: GdnRecords, slots: Tensor, qkv: Tensor, decay: Tensor, beta: Tensor) -> None:
    sequences = slots.shape[0]
    width = qkv.shape[0] // sequences
    kv = qkv[:, qkv.shape[1] - records.kv.shape[2] :]
    records.kv[slots, :width] = kv.reshape(sequences, width, -1)
    records.decay[slots, :width] = decay.reshape(sequences, width, -1)
    records.beta[slots, :width] = beta.reshape(sequences, width, -1)
