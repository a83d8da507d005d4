"""Operands of the gated delta net for tests: pools, slots, and the reference's answer to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from harness import Operands, guarded, relative_error
from torch import Tensor

from ninfer_core.ops.contracts.values import GdnMixer, GdnRecords

SLOTS = 7
SOURCES = [4, 0, 2]
TARGETS = [1, 6, 3]
"""Slot 5 is nobody's."""


@dataclass(frozen=True)
class Sizes:
    nk: int
    nv: int
    dk: int = 128
    dv: int = 128

    @property
    def channels(self) -> int:
        return 2 * self.nk * self.dk + self.nv * self.dv

    @property
    def width(self) -> int:
        """Columns of a stacked projection."""
        return self.channels + self.nv * self.dv + 2 * self.nv


def make_mixer(operands: Operands, sizes: Sizes) -> GdnMixer:
    return GdnMixer(
        conv=operands.normal(4, sizes.channels, scale=0.5),
        decay_rate=operands.normal(sizes.nv).exp(),
        dt_bias=operands.normal(sizes.nv),
        norm_scale=operands.normal(sizes.dv) + 1.5,
        eps=1e-6,
        key_heads=sizes.nk,
        key_size=sizes.dk,
        value_heads=sizes.nv,
        value_size=sizes.dv,
    )


def make_pools(operands: Operands, sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """History and state of all slots."""
    history = operands.normal(SLOTS, 3, sizes.channels, dtype=dtype)
    return history, operands.normal(SLOTS, sizes.nv, sizes.dk, sizes.dv)


def make_records(operands: Operands, sizes: Sizes, width: int, dtype: torch.dtype) -> GdnRecords:
    """Unwritten records hold NaN."""
    nan = float("nan")
    return GdnRecords(
        inputs=operands.empty(SLOTS, width, sizes.channels, dtype=dtype).fill_(nan),
        keys=operands.empty(SLOTS, width, sizes.nk, sizes.dk).fill_(nan),
        updates=operands.empty(SLOTS, width, sizes.nv, sizes.dv).fill_(nan),
        keep=operands.empty(SLOTS, width, sizes.nv).fill_(nan),
    )


def gates_of(operands: Operands, rows: int, heads: int) -> tuple[Tensor, Tensor]:
    """Decays in (-inf, 0] and betas in [0, 1)."""
    return -operands.normal(rows, heads).abs(), operands.uniform(rows, heads)


def assert_fp32_close(result: Tensor, exact: Tensor, plain: Tensor) -> None:
    """As close to the oracle as fp32 allows: twice torch's error, and some for the approximate exp,
    division and root of a GPU."""
    error, base = relative_error(result.cpu(), exact), relative_error(plain, exact)
    assert error <= 2 * base + 5e-7, f"relative error {error:.3g}, torch's {base:.3g}"
    worst = (result.cpu().double() - exact).abs().amax() / exact.abs().amax()
    assert bool(worst <= 1e-5)


def slots_of(device: torch.device, *rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=device)


def on_cpu(value: Any, dtype: torch.dtype | None = None) -> Any:
    """A copy for the reference; floats of ``dtype`` if one is given."""
    if isinstance(value, Tensor):
        copy = value.detach().cpu().clone()
        return copy.to(dtype) if dtype and copy.is_floating_point() else copy
    if isinstance(value, GdnMixer):
        tensors = ("conv", "decay_rate", "dt_bias", "norm_scale")
        return replace(value, **{name: on_cpu(getattr(value, name), dtype) for name in tensors})
    if isinstance(value, GdnRecords):
        return GdnRecords(*(on_cpu(getattr(value, f.name), dtype) for f in fields(value)))
    return value


def reference(op: Callable[..., Any], *args: Any, dtype: torch.dtype | None = None) -> list[Any]:
    """The op's result and then its arguments after it, all copies."""
    copies = [on_cpu(arg, dtype) for arg in args]
    return [op(*copies), *copies]


def watched(op: Callable[..., Any], *args: Any, pools: tuple[int, ...]) -> list[Any]:
    """As :func:`reference` on the device, with the arguments at ``pools`` inside guard bytes."""
    guards = {place: guarded(args[place]) for place in pools}
    called = [guards[i].tensor if i in guards else arg for i, arg in enumerate(args)]
    result = op(*called)
    for guard in guards.values():
        guard.check()
    return [result, *called]
