"""Where the rows of a call stand in their sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import PagedRows

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Placement:
    """Rotary tables f32[T, R/2] and physical places of keys, beside the rows themselves."""

    rows: PagedRows
    kv_slots: Tensor
    cos: Tensor
    sin: Tensor
