"""The backend object: the ops of every subject under one name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ninfer_core.ops.backend import OpBackend
from ninfer_ops_triton import gdn, gdn_prefill, heads, linear, rounds, sampling

SUBJECTS: tuple[Mapping[str, Callable[..., Any]], ...] = (
    gdn.OPS,
    gdn_prefill.OPS,
    heads.OPS,
    linear.OPS,
    rounds.OPS,
    sampling.OPS,
)
"""The ``OPS`` of each module that implements some: op name to function."""

BACKEND = OpBackend(
    "triton", MappingProxyType({name: op for ops in SUBJECTS for name, op in ops.items()})
)
