"""Launches of the gated delta net at real geometry: 16, 32 and 48 value heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from harness import Operands

from ninfer_core.ops.contracts.values import GdnMixer, GdnRecords
from ninfer_ops_triton import gdn, gdn_prefill

META = Operands(device="meta")
KEY_HEADS, SIZE, SLOTS, WIDTH = 16, 128, 10, 4
I64, BF16 = torch.int64, torch.bfloat16


def channels(heads: int) -> int:
    return (2 * KEY_HEADS + heads) * SIZE


def mixer(heads: int) -> GdnMixer:
    return GdnMixer(
        conv=META.empty(4, channels(heads)),
        decay_rate=META.empty(heads),
        dt_bias=META.empty(heads),
        norm_scale=META.empty(SIZE),
        eps=1e-6,
        key_heads=KEY_HEADS,
        key_size=SIZE,
        value_heads=heads,
        value_size=SIZE,
    )


def records(heads: int) -> GdnRecords:
    return GdnRecords(
        inputs=META.empty(SLOTS, WIDTH, channels(heads), dtype=BF16),
        keys=META.empty(SLOTS, WIDTH, KEY_HEADS, SIZE),
        updates=META.empty(SLOTS, WIDTH, heads, SIZE),
        keep=META.empty(SLOTS, WIDTH, heads),
    )


def pools(heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    history = META.empty(SLOTS, 3, channels(heads), dtype=BF16)
    return history, META.empty(SLOTS, heads, SIZE, SIZE)


def stacked(rows: int, heads: int) -> torch.Tensor:
    return META.empty(rows, channels(heads) + heads * SIZE + 2 * heads, dtype=BF16)


def rows_of(count: int, dtype: torch.dtype = I64) -> torch.Tensor:
    return META.empty(count, dtype=dtype)


def mix(heads: int, rows: int) -> None:
    gdn.gdn_mix_step(
        stacked(rows, heads), mixer(heads), *pools(heads), rows_of(rows), rows_of(rows)
    )


def step(heads: int, rows: int) -> None:
    history, state = pools(heads)
    mixed, _, b, a = stacked(rows, heads).split_with_sizes(
        [channels(heads), heads * SIZE, heads, heads], dim=1
    )
    decay, beta = gdn.gdn_gates(a, b, META.empty(heads), META.empty(heads))
    weight = META.empty(4, channels(heads))
    qkv = gdn.causal_conv_step(mixed, weight, history, rows_of(rows), rows_of(rows))
    gdn.gdn_step(qkv, decay, beta, state, rows_of(rows), rows_of(rows), KEY_HEADS)


def verify(heads: int, rows: int) -> None:
    history, state = pools(heads)
    slots, counts = rows_of(rows), rows_of(rows, torch.int32)
    x = META.empty(rows * WIDTH, channels(heads), dtype=BF16)
    gates = META.empty(rows * WIDTH, heads)
    weight = META.empty(4, channels(heads))
    qkv = gdn.causal_conv_verify(x, weight, history, slots, records(heads))
    gdn.gdn_verify(qkv, gates, gates, state, slots, KEY_HEADS, records(heads))
    gdn.causal_conv_fold(history, slots, records(heads), counts)
    gdn.gdn_fold(state, slots, records(heads), counts)


def mix_verify(heads: int, rows: int) -> None:
    history, state = pools(heads)
    arguments = mixer(heads), history, state, rows_of(rows), records(heads)
    for settled in (False, True):
        gdn.gdn_mix_verify(stacked(rows * WIDTH, heads), *arguments, settled)
    gdn.gdn_mix_verify(stacked(rows, heads), *arguments)


def fold_layers(heads: int, rows: int) -> None:
    history, state = (META.empty(3, *x.shape, dtype=x.dtype) for x in pools(heads))
    one = records(heads)
    whole = GdnRecords(
        *(
            META.empty(3, *x.shape, dtype=x.dtype)
            for x in (one.inputs, one.keys, one.updates, one.keep)
        )
    )
    counts = rows_of(rows, torch.int32)
    gdn.gdn_fold_layers(history, state, rows_of(rows), whole, counts, rows_of(rows))


def chunk(heads: int, tokens: int) -> None:
    history, state = pools(heads)
    x = stacked(tokens, heads)[:, : channels(heads)]
    qkv = gdn.causal_conv_chunk(x, META.empty(4, channels(heads)), history, rows_of(1))
    gates = META.empty(tokens, heads)
    gdn_prefill.gdn_chunk(qkv, gates, gates, state, rows_of(1), KEY_HEADS)


LAUNCHES: dict[str, Callable[[], None]] = {
    f"{call.__name__}_{heads}_{size}": partial(call, heads, size)
    for call, sizes in (
        (mix, (1, 8)),
        (step, (1, 8)),
        (verify, (8,)),
        (mix_verify, (1, 8)),
        (fold_layers, (1, 8)),
        (chunk, (1, 8192)),
    )
    for heads in (16, 32, 48)
    for size in sizes
}
