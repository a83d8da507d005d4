"""Logits, and log-probabilities of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ninfer_core.ops.contracts.values import Stream, WeightMatrix
from ninfer_ops_triton.linear import normed_rows, product


def lm_head(hidden: Tensor, weight: WeightMatrix, addressable: int) -> Tensor:
    return product(hidden, weight, "head", live_rows=addressable)


def norm_head(
    stream: Stream, eps: float, weight: WeightMatrix, addressable: int, out: Tensor | None = None
) -> Tensor:
    return product(
        normed_rows(stream), weight, "head", squares=stream.squares, eps=eps, live_rows=addressable,
        out=out,
    )  # fmt: skip


OPS: Mapping[str, Callable[..., Any]] = {"lm_head": lm_head, "norm_head": norm_head}
"""Op name to function."""
