"""The kernel that measures read bandwidth, over the bytes that it is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from harness import Operands

from ninfer_ops_triton.bench.bandwidth import BYTES, SHAPES, add_up

words = Operands(device="meta").empty(BYTES // 4, dtype=torch.int32)

LAUNCHES: dict[str, Callable[[], None]] = {
    f"read-{shape.programs}-{shape.block}": partial(add_up, words, shape) for shape in SHAPES
}
