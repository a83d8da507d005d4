"""The gated delta rule in chunks of batched products, put in place of transformers' loop.

Used in training only. `tests/demo_model` shows that it equals the function it replaces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MAX_CHUNK = 64
_BLOCK = 16


def unit_lower_inverse(strict: Tensor) -> Tensor:
    """(I + A)^-1 for strictly lower triangular A [..., C, C] with C at most 64.

    Blocks of 16 by the doubling product, then pairs of blocks by substitution. In full fp32: the
    powers of A inside a block can be 1e4 times larger than the inverse.
    """
    size, block = strict.shape[-1], _BLOCK
    padded = functional.pad(strict, (0, MAX_CHUNK - size, 0, MAX_CHUNK - size))
    found = _diagonal(padded, block)
    found = _doubled(found)
    while block < MAX_CHUNK:
        below = _diagonal(padded, 2 * block)[..., block:, :block]
        upper, lower = found[..., 0::2, :, :], found[..., 1::2, :, :]
        corner = -lower @ below @ upper
        top = torch.cat([upper, torch.zeros_like(upper)], -1)
        found = torch.cat([top, torch.cat([corner, lower], -1)], -2)
        block *= 2
    return found[..., 0, :size, :size]


def _diagonal(matrices: Tensor, block: int) -> Tensor:
    """Diagonal blocks [..., N, block, block]."""
    starts = range(0, matrices.shape[-1], block)
    return torch.stack([matrices[..., n : n + block, n : n + block] for n in starts], -3)


def _doubled(strict: Tensor) -> Tensor:
    eye = torch.eye(strict.shape[-1], dtype=strict.dtype, device=strict.device)
    power, inverse = -strict, eye - strict
    for _ in range(_BLOCK.bit_length() - 2):
        power = power @ power
        inverse = inverse + inverse @ power
    return inverse


class _UnitLowerInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, strict: Tensor) -> Tensor:
        reduced = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        inverse = unit_lower_inverse(strict)
        torch.backends.cuda.matmul.allow_tf32 = reduced
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        turned: Tensor = inverse.mT
        return torch.tril(-(turned @ grads[0] @ turned), -1)


def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gated delta rule over whole sequences.

    Args:
        query, key: [B, T, Hk, dk], Hk a divisor of H. value: [B, T, H, dv].
        g: log decay [B, T, H], at most 0. beta: write strength [B, T, H].
        initial_state: [B, H, dk, dv] or None for zeros.

    Returns:
        Output [B, T, H, dv] in the dtype of `query`, and the final state where asked for.
    """
    with torch.autocast(query.device.type, enabled=False):
        q, k, v = (t.transpose(1, 2).float() for t in (query, key, value))
        decay, write = (t.transpose(1, 2).float() for t in (g, beta))
        if use_qk_l2norm_in_kernel:
            q, k = _unit(q), _unit(k)
        groups = v.shape[1] // q.shape[1]
        q, k = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (q, k))
        length, chunk = q.shape[2], chunk_size(q.shape[2])
        q = q * q.shape[-1] ** -0.5
        q, k, v, decay, write = (_chunked(t, chunk) for t in (q, k, v, decay, write))
        out, state = _scan(q, k, v, decay, write, initial_state)
        out = out.flatten(2, 3)[:, :, :length].transpose(1, 2).to(query.dtype)
    return out, state if output_final_state else None


def chunk_size(length: int) -> int:
    """The largest chunk of at most 64 rows, in eights, that wastes the least padding."""
    pieces = -(-length // MAX_CHUNK)
    return -(-length // (8 * pieces)) * 8


def causal_conv1d(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """Depthwise causal convolution as four shifted products. hidden_states [B, C, T]."""
    if bias is not None or activation != "silu":
        raise ValueError("only the bias-free SiLU convolution of Qwen3.5 is written here")
    taps, length = weight.shape[-1], hidden_states.shape[-1]
    padded = functional.pad(hidden_states, (taps - 1, 0))
    kernel = weight.to(hidden_states.dtype)
    mixed = sum(kernel[:, tap, None] * padded[..., tap : tap + length] for tap in range(taps))
    return functional.silu(mixed)  # type: ignore[arg-type]


def install() -> None:
    """Replace both functions in transformers' Qwen3.5 module."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as module

    for name in ("torch_chunk_gated_delta_rule", "causal_conv1d_fn"):
        if not hasattr(module, name):
            raise RuntimeError(f"transformers has no {name} to replace; use 5.17 to 5.24")
    module.torch_chunk_gated_delta_rule = chunk_gated_delta_rule
    module.causal_conv1d_fn = causal_conv1d


def _unit(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + 1e-6)


def _chunked(rows: Tensor, chunk: int) -> Tensor:
    """[B, H, T, ...] to [B, H, N, chunk, ...], zero padded: a zero row leaves the state alone."""
    missing = -rows.shape[2] % chunk
    widths = (0, 0) * (rows.dim() - 3) + (0, missing)
    padded = functional.pad(rows, widths)
    return padded.reshape(*rows.shape[:2], -1, chunk, *rows.shape[3:])


def _scan(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Chunked form: within a chunk triangular products, between chunks the running state."""
    total = decay.cumsum(-1)
    rows = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=q.device)
    gap = (total[..., :, None] - total[..., None, :]).masked_fill(~rows.tril(), -torch.inf)
    fade, grown = gap.exp(), total.exp()[..., None]
    written = k * write[..., None]
    strict = ((written @ k.mT) * fade).tril(-1)
    inverse: Tensor = _UnitLowerInverse.apply(strict)  # type: ignore[no-untyped-call]
    fresh, read = inverse @ (v * write[..., None]), inverse @ (written * grown)
    within, queried = (q @ k.mT) * fade, q * grown
    last = total[..., -1:]
    kept, stored = last.exp()[..., None], k * (last - total).exp()[..., None]
    if state is None:
        state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    states, deltas, final = _carry(fresh, read, stored, kept, state)
    return queried @ states + within @ deltas, final


def _carry(
    fresh: Tensor, read: Tensor, stored: Tensor, kept: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The sequential part: (state before each chunk, delta of each chunk, final state)."""
    parts = (t.flatten(0, 1).unbind(1) for t in (fresh, read, stored.mT, kept))
    running, states, deltas = state.flatten(0, 1), [], []
    for new, seen, put, keep in zip(*parts, strict=True):
        states.append(running)
        deltas.append(torch.baddbmm(new, seen, running, alpha=-1))
        running = torch.baddbmm(running * keep, put, deltas[-1])
    before = torch.stack(states, 1).reshape(*fresh.shape[:3], *state.shape[2:])
    return before, torch.stack(deltas, 1).reshape(fresh.shape), running.reshape(state.shape)
