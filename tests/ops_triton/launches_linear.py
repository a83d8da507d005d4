"""Products, norms and embedding at the geometry of the published models, to be compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from harness import Operands
from matrices import EPS, cuts

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton import heads, hidden, linear, norm, prefill_linear, rounded, tiles
from ninfer_ops_triton.streams import open_stream
from ninfer_ops_triton.weights import KINDS

VOCABULARY, ADDRESSABLE = 248_320, 248_077
GEOMETRY = {"0.8B": (1024, 16, 8, 2, 3584), "27B": (5120, 48, 24, 4, 17408)}
"""Hidden size, value heads, heads, KV heads, intermediate size."""

operands = Operands(device="meta")
PREPARED = {kind: name for name, kind in KINDS.items()}


def weight(format_: str, rows: int, columns: int) -> WeightMatrix:
    """A prepared weight without values."""
    padded, whole = -(-columns // 128) * 128, -(-rows // 16) * 16
    planes = {
        "bf16": {"weight": ((rows, columns), torch.bfloat16)},
        "fp8_e4m3fn_row_bf16": {
            "codes": ((rows, columns), torch.float8_e4m3fn), "scales": ((rows,), torch.bfloat16),
        },
        "triton.q4_g64_fp16": {
            "codes": ((whole, padded // 2), torch.uint8),
            "scales": ((padded // 64, whole), torch.float16),
        },
    }[format_]  # fmt: skip
    made = {name: operands.empty(*shape, dtype=dtype) for name, (shape, dtype) in planes.items()}
    return WeightMatrix(format_, rows, columns, made)


def x(count: int, width: int) -> torch.Tensor:
    return operands.empty(count, width, dtype=torch.bfloat16)


def decode_route(format_: str, model: str, counts: tuple[int, ...]) -> None:
    hidden, nv, nh, kv, inner = GEOMETRY[model]
    scale = operands.empty(hidden)
    stacked = 2 * 16 * 128 + 2 * nv * 128 + 2 * nv
    for count in counts:
        residual = x(count, hidden)
        # As the products of a round find it: opened by the one before them.
        stream = linear.linear_add(
            residual, weight(format_, hidden, hidden), open_stream(residual, scale), scale
        )
        for rows in (stacked, nh * 512 + 2 * kv * 256):
            linear.norm_linear(stream, EPS, weight(format_, rows, hidden))
        for columns in (nv * 128, inner):
            down = weight(format_, hidden, columns)
            linear.linear_add(x(count, columns), down, stream, scale)
        linear.linear_decode(residual, weight(format_, hidden, hidden))
        linear.norm_swiglu(stream, EPS, weight(format_, 2 * inner, hidden))
        head = weight(format_, VOCABULARY, hidden)
        heads.norm_head(stream, EPS, head, ADDRESSABLE)


def ends(format_: str, model: str) -> None:
    """From tokens into a stream, and from the target to its drafter."""
    width, scale = GEOMETRY[model][0], operands.empty(GEOMETRY[model][0])
    table, ids = weight(format_, VOCABULARY, width), operands.empty(4, dtype=torch.int32)
    hidden.embed_stream(ids, table, scale)
    hidden.draft_inputs(ids, table, scale, x(4, width), scale, EPS)
    hidden.draft_inputs(ids[:1], table, scale, x(1, width), scale, EPS, scale)
    slots, pool = operands.empty(2, dtype=torch.int64), x(9, width)
    hidden.hand_over(x(4, width), scale, EPS, pool, slots, pool, slots.int())
    hidden.hand_over(x(2, width), scale, EPS, pool, slots, pool, slots)


def cut(kind: str, name: str, columns: int, count: int) -> None:
    """Every fusion of a format, cut as a test does it."""
    scale, values = operands.empty(columns), x(count, columns)
    narrow, wide = (weight(PREPARED[kind], rows, columns) for rows in (40, 80))
    stream, into = open_stream(values, scale), open_stream(x(count, 40), operands.empty(40))
    with patch.object(tiles, "choose", lambda *shape: cuts(kind)[name]):
        linear.linear_decode(values, narrow)
        linear.linear_add(values, narrow, into, operands.empty(40))
        linear.norm_linear(stream, EPS, narrow)
        linear.norm_swiglu(stream, EPS, wide)
        heads.norm_head(stream, EPS, narrow, 37)


def single_rows() -> None:
    """Weights of one row, which Triton compiles apart."""
    for format_ in PREPARED.values():
        linear.linear_decode(x(1, 64), weight(format_, 1, 64))
        stream = open_stream(x(1, 64), operands.empty(64))
        linear.norm_swiglu(stream, EPS, weight(format_, 2, 64))


def rows_alone() -> None:
    """Norms, gates, embedding, widening and rounding."""
    for dtype in (torch.bfloat16, torch.float32):
        for width in (1024, 5120):
            values, scale = operands.empty(3, width, dtype=dtype), operands.empty(width)
            norm.rms_norm(values, scale, EPS)
            norm.add_rms_norm(values, values, scale, EPS)
        stacked = operands.empty(3, 16384, dtype=dtype)
        norm.swiglu(stacked)
        query, gate = stacked.view(3, 32, 512).split(256, dim=2)
        norm.sigmoid_gate(query.contiguous(), gate)
        gates = stacked[:, :4096].view(3, 32, 128)
        norm.gated_rms_norm(operands.empty(3, 32, 128), gates, operands.empty(128), EPS)
    for width in (1024, 3584, 5120, 17408):
        rounded.quantised_rows(x(3, width))
    ids = operands.empty(5, dtype=torch.int32)
    for format_ in PREPARED.values():
        table = weight(format_, VOCABULARY, 1024)
        linear.embedding(ids, table)
        if format_ != "bf16":
            for _ in prefill_linear.widened_blocks(table, 8192):
                pass


LAUNCHES: dict[str, Callable[[], None]] = {
    "rows": rows_alone,
    "single rows": single_rows,
    **{
        f"decode {kind} {model}": partial(decode_route, format_, model, counts)
        for kind, format_ in PREPARED.items()
        for model, counts in {"0.8B": (1,), "27B": (32,)}.items()
    },
    **{
        f"ends {kind} {model}": partial(ends, format_, model)
        for kind, format_ in PREPARED.items()
        for model in GEOMETRY
    },
    **{
        f"cut {kind} {name}": partial(cut, kind, name, columns, count)
        for kind in PREPARED
        for name, columns, count in (("one", 512, 1), ("parts", 400, 9))
    },
}
