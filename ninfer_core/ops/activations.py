"""How wide the activations of one start may be, and of how many weights they are rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ninfer_core.contract.engine import A16
from ninfer_core.ops.contracts.linear import PrepareLinear
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.table import Ops


class PrepareWithin:
    """A backend's ``prepare_linear`` under the start option ``activations``: ``a16`` takes back
    what consumers of a weight permit, ``auto`` leaves it. Counts what it prepares."""

    def __init__(self, prepare: PrepareLinear, activations: str) -> None:
        self._prepare = prepare
        self._activations = activations
        self._matrices = self._rounded = 0

    def __call__(self, weight: WeightMatrix) -> WeightMatrix:
        keeps = self._activations != A16
        prepared = self._prepare(weight if keeps else replace(weight, allow_a8=False))
        self._matrices += 1
        self._rounded += prepared.allow_a8
        return prepared

    def details(self) -> Mapping[str, Any]:
        """``activations``: the option as it was ``asked``, how many ``matrices`` were prepared, and
        of how many of them the activations of prompts are rounded to eight bits, ``a8``."""
        counts = {"matrices": self._matrices, "a8": self._rounded}
        return {"activations": {"asked": self._activations, **counts}}


def within(ops: Ops, activations: str) -> tuple[Ops, PrepareWithin]:
    """The table with its ``prepare_linear`` under the option, and that."""
    prepare = PrepareWithin(ops.prepare_linear, activations)
    return replace(ops, prepare_linear=prepare), prepare
