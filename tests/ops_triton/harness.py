"""What tests of kernels share: operands, the accuracy law, guarded memory, recorded launches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ninfer_ops_triton import launch

GUARD_BYTES = 4096
PATTERN = 0xA5
POISON = 0x7F
"""Bytes that make huge integers; floats are poisoned with NaN."""


class Operands:
    """Random operands from one seeded generator; on ``meta`` they have shapes and no values."""

    def __init__(self, seed: int = 0, device: torch.device | str = "cpu") -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.device = torch.device(device)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        if self.device.type == "meta":
            return self.empty(*shape, dtype=dtype)
        values = torch.randn(*shape, generator=self.generator, dtype=torch.float64) * scale
        return values.to(dtype).to(self.device)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """In [0, 1)."""
        if self.device.type == "meta":
            return self.empty(*shape, dtype=dtype)
        values = torch.rand(*shape, generator=self.generator, dtype=torch.float64)
        return values.to(dtype).to(self.device)

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """In 0 .. high - 1."""
        if self.device.type == "meta":
            return self.empty(*shape, dtype=dtype)
        return torch.randint(high, shape, generator=self.generator).to(dtype).to(self.device)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)


def relative_error(result: Tensor, oracle: Tensor) -> float:
    """Frobenius norm of the difference over that of the oracle, of what is finite in the oracle."""
    kept = oracle.isfinite()
    wide = oracle.double()[kept]
    return float((result.double()[kept] - wide).norm() / wide.norm().clamp_min(1e-300))


def assert_close_to_oracle(
    result: Tensor, oracle: Tensor, baseline: Tensor | None = None, *, ulps: float = 4.0
) -> None:
    """Hold ``result`` against a float64 ``oracle``.

    Its relative Frobenius error is at most 1.5 times that of ``baseline``, torch's own op in the
    same dtypes (or of the oracle rounded to the result's dtype, when there is none), and no element
    is off by more than ``ulps`` units in the last place of the row's largest magnitude. What is
    infinite or NaN must be so in both.
    """
    assert result.shape == oracle.shape
    result, oracle = result.detach().cpu(), oracle.detach().cpu().double()
    finite = oracle.isfinite()
    assert torch.equal(result[~finite].double().nan_to_num(7.0), oracle[~finite].nan_to_num(7.0))
    assert bool(result[finite].isfinite().all()), "not finite where the oracle is"
    best = oracle.to(result.dtype) if baseline is None else baseline.detach().cpu()
    epsilon = torch.finfo(result.dtype).eps
    allowed = max(1.5 * relative_error(best, oracle), epsilon / 2)
    error = relative_error(result, oracle)
    assert error <= allowed, f"relative error {error:.3g}, allowed {allowed:.3g}"
    exact = oracle.where(finite, 0.0)
    off = (result.double().where(finite, 0.0) - exact).abs()
    top = exact.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(result.dtype).tiny)
    unit = epsilon * torch.exp2(top.log2().floor())
    worst = float((off / unit).max()) if off.numel() else 0.0
    assert worst <= ulps, f"an element is off by {worst:.3g} ulp of its row"


def assert_sequences_close(
    result: Tensor, oracle: Tensor, baseline: Tensor, starts: Tensor, live: Tensor
) -> None:
    """Hold each sequence of equally many rows against the oracle alone, by what
    :func:`assert_close_to_oracle` asks or, in fp32, to 1e-6; rows that are not live are zeros.

    Attention's results shrink with the tokens seen: in one norm, rows of short sequences hide the
    errors of long ones.
    """
    width, wrong = len(result) // len(starts), []
    for sequence, (start, rows) in enumerate(zip(starts.tolist(), live.tolist(), strict=True)):
        begin = sequence * width
        mine = slice(begin, begin + rows)
        try:
            assert not result[begin + rows : begin + width].any(), "rows that are not live"
            if result.dtype == torch.float32:
                assert relative_error(result[mine].cpu(), oracle[mine]) < 1e-6
            else:
                assert_close_to_oracle(result[mine], oracle[mine], baseline[mine])
        except AssertionError as error:
            pairs = zip(result[mine].cpu(), oracle[mine], strict=True)
            each = ", ".join(f"{relative_error(*pair):.3g}" for pair in pairs)
            wrong.append(f"sequence {sequence} from {start}: {error}; errors by row: {each}")
    assert not wrong, "\n".join(wrong)


def poisoned(
    shape: tuple[int, ...] | torch.Size, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """A tensor of NaN (floats), True (bool) or huge numbers (integers) inside guard bytes."""
    return Guarded(shape, dtype, device).tensor


class Guarded:
    """A contiguous tensor inside a larger buffer; ``check`` fails if a byte around it changed."""

    def __init__(
        self,
        shape: tuple[int, ...] | torch.Size,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        size = torch.Size(shape).numel() * dtype.itemsize
        self.buffer = torch.full(
            (size + 2 * GUARD_BYTES,), PATTERN, dtype=torch.uint8, device=device
        )
        inner = self.buffer[GUARD_BYTES : GUARD_BYTES + size]
        self.size = size
        inner.fill_(1 if dtype == torch.bool else 0xFF if dtype.is_floating_point else POISON)
        self.tensor = inner.view(dtype).view(shape)

    def check(self) -> None:
        around = (self.buffer[:GUARD_BYTES], self.buffer[GUARD_BYTES + self.size :])
        for side, guard in zip(("before", "after"), around, strict=True):
            assert bool((guard == PATTERN).all()), (
                f"bytes {side} a {list(self.tensor.shape)} tensor were overwritten"
            )


def guarded(tensor: Tensor) -> Guarded:
    """A contiguous copy of ``tensor`` inside guard bytes."""
    copy = Guarded(tensor.shape, tensor.dtype, tensor.device)
    copy.tensor.copy_(tensor)
    return copy


class GuardedAllocations(TorchFunctionMode):
    """Inside, ``torch.empty``, ``empty_like`` and ``new_empty`` give poisoned tensors inside guard
    bytes; leaving checks the guards of all of them::

        with GuardedAllocations():
            result = op(x)
    """

    made: list[Guarded]

    def __enter__(self) -> GuardedAllocations:
        self.made = []
        return super().__enter__()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.empty, torch.empty_like, Tensor.new_empty):
            self.made.append(Guarded(result.shape, result.dtype, result.device))
            return self.made[-1].tensor
        return result

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if error[0] is None:
            for guard in self.made:
                guard.check()


@dataclass(frozen=True)
class Launch:
    """A launch as the compiler sees it. ``args`` are, in order, ``("*bf16", aligned)`` for a
    pointer, ``("i32" or "i64", divisible by 16)``, ``("fp32" or "u1", False)``, or
    ``("constexpr", value)`` for None and the integer 1."""

    kernel: Any
    args: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]


_POINTERS = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16",
    torch.float16: "*fp16", torch.float8_e4m3fn: "*fp8e4nv", torch.bool: "*i1",
    torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32",
    torch.int64: "*i64", torch.uint32: "*u32", torch.uint64: "*u64",
}  # fmt: skip


def _typed(value: Any) -> tuple[str, Any]:
    if isinstance(value, Tensor):
        return _POINTERS[value.dtype], value.storage_offset() * value.dtype.itemsize % 16 == 0
    if isinstance(value, bool):
        return "u1", False
    if value is None or (isinstance(value, int) and value == 1):
        return "constexpr", value
    if isinstance(value, int):
        return ("i32" if -(2**31) <= value < 2**31 else "i64"), value % 16 == 0
    assert isinstance(value, float), f"no rule for a kernel argument {value!r}"
    return "fp32", False


@contextmanager
def recorded_launches() -> Iterator[list[Launch]]:
    """Every distinct launch made inside, first seen first."""
    seen: dict[Launch, None] = {}
    launches: list[Launch] = []

    def observe(
        kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        assert 1 <= len(grid) <= 3, f"a grid has one to three sizes, not {grid}"
        assert all(size >= 1 for size in grid), f"an empty grid {grid}"
        entry = Launch(kernel, tuple(map(_typed, args)), tuple(sorted(options.items())))
        if entry not in seen:
            seen[entry] = None
            launches.append(entry)

    launch.observers.append(observe)
    try:
        yield launches
    finally:
        launch.observers.remove(observe)


def around(*boundaries: int, interior: tuple[int, ...] = ()) -> list[int]:
    """1, each boundary and its neighbours, and more: sizes worth a test."""
    near = itertools.chain.from_iterable((b - 1, b, b + 1) for b in boundaries)
    return sorted({1, *interior, *(size for size in near if size >= 1)})
