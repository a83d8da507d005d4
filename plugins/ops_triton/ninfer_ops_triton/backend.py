"""The backend object: the ops of every subject under one name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ninfer_core.ops.backend import OpBackend
from ninfer_ops_triton import (
    attention,
    attention_prefill,
    drafting,
    gdn,
    gdn_prefill,
    heads,
    hidden,
    kv,
    linear,
    norm,
    prefill_linear,
    rounds,
    sampling,
    streams,
    transfers,
    verifying,
)
from ninfer_ops_triton.prepare import prepare

SUBJECTS: tuple[Mapping[str, Callable[..., Any]], ...] = (
    attention.OPS,
    attention_prefill.OPS,
    drafting.OPS,
    kv.OPS,
    gdn.OPS,
    gdn_prefill.OPS,
    heads.OPS,
    hidden.OPS,
    linear.OPS,
    norm.OPS,
    prefill_linear.OPS,
    rounds.OPS,
    sampling.OPS,
    streams.OPS,
    transfers.OPS,
    verifying.OPS,
)
"""The ``OPS`` of each module that implements some: op name to function."""

BACKEND = OpBackend(
    "triton", MappingProxyType({name: op for ops in SUBJECTS for name, op in ops.items()}), prepare
)
