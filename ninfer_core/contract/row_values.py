"""Values that are made for every row of every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def row_value(cls: type[T]) -> type[T]:
    """A dataclass with slots and named fields, frozen for the type checker alone: at run time the
    ``__init__`` of a frozen one takes two to three times as long, for every row of every round."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
