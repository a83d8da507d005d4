"""Time the products of prompts with FP8 weights: widened to bf16, and over rounded activations.

Usage: python bench/prefill_products.py [--models 27B ...] [--rows 129 512 1024 8192]
       [--seconds 0.2] [--json FILE] [--tiny]

For each matrix of a released size and each number of prompt rows, medians in microseconds of calls
that wait in the device's queue, over copies of the matrix that do not fit its L2 cache: the
product with 16-bit activations (``a16``), the one with eight bits (``a8``), of that the rounding
alone (``rounding``), and the library's product with its faster sums, which keep fewer bits and are
not used (``fast sums``); then the rate of ``a8`` in TFLOP/s, and the relative error of the last two
against float64 over a few rows, beside that of the result's own rounding to bf16. ``--tiny`` takes
small sizes, in Triton's interpreter where there is no GPU (TRITON_INTERPRET=1): a trial of the
script, its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ninfer_core.artifact.formats import FP8_ROW
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton import prefill_linear, rounded, weights

MODELS = {
    "0.8B": (1024, 16, 8, 2, 3584),
    "4B": (2560, 32, 16, 4, 9216),
    "9B": (4096, 32, 16, 4, 12288),
    "27B": (5120, 48, 24, 4, 17408),
}
"""Hidden size, value heads, heads, KV heads, intermediate size."""

CHECKED = 64
"""Rows that are compared with float64."""

COLD_BYTES = 160 << 20
"""Bytes of all copies of a weight together, three at least: three times the L2 cache."""

LEAST, MOST = 10, 20
"""Calls that are timed together, of weights of COLD_BYTES and more, and of smaller ones."""

SLEEP_CYCLES = 6_000_000
"""Some 3 ms at 2 GHz, in which the host enqueues them."""

Call = Callable[[int], Any]


@dataclass(frozen=True)
class Case:
    """A matrix by name; ``rows`` outputs of ``columns`` inputs."""

    name: str
    rows: int
    columns: int


def cases(model: str) -> Iterator[Case]:
    hidden, values, heads, kv, inner = MODELS[model]
    yield Case(f"{model} gdn in", 2 * 16 * 128 + 2 * values * 128 + 2 * values, hidden)
    yield Case(f"{model} gdn out", hidden, values * 128)
    yield Case(f"{model} attention in", heads * 512 + 2 * kv * 256, hidden)
    yield Case(f"{model} attention out", hidden, heads * 256)
    yield Case(f"{model} gate and up", 2 * inner, hidden)
    yield Case(f"{model} down", hidden, inner)


def weight_of(case: Case, device: torch.device) -> WeightMatrix:
    codes = torch.randn(case.rows, case.columns, device=device).mul_(100).clamp_(-448, 448)
    planes = {
        "codes": codes.to(torch.float8_e4m3fn),
        "scales": torch.full((case.rows,), 0.01 * case.columns**-0.5, device=device).bfloat16(),
    }
    return WeightMatrix(FP8_ROW.name, case.rows, case.columns, planes, allow_a8=True)


def library(codes: Tensor, scales: Tensor, weight: WeightMatrix) -> Tensor:
    """The product with the faster sums."""
    out: Tensor = torch._scaled_mm(
        codes,
        weight.planes["codes"].t(),
        scale_a=scales,
        scale_b=weight.planes[rounded.WIDE_SCALES].view(1, -1),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return out


def microseconds(call: Call, weight_bytes: int, seconds: float, device: torch.device) -> float:
    """The median over several turns of one call, on the device's clock where it has one.

    ``call`` is given the place of a weight among copies.
    """
    for place in range(2):
        call(place)
    many = 1 if device.type == "cpu" else MOST if weight_bytes < COLD_BYTES else LEAST
    taken: list[float] = []
    ends = time.perf_counter() + seconds
    while len(taken) < 3 or (time.perf_counter() < ends and len(taken) < 200):
        taken.append(_turn(call, many, device))
    return statistics.median(taken)


def _turn(call: Call, many: int, device: torch.device) -> float:
    """Microseconds of one of ``many`` calls. The device sleeps until all are enqueued: otherwise
    small ones would take as long as the host needs to launch them."""
    if device.type == "cpu":
        began = time.perf_counter()
        call(0)
        return 1e6 * (time.perf_counter() - began)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    first.record()
    for place in range(many):
        call(place)
    last.record()
    last.synchronize()
    return 1e3 * float(first.elapsed_time(last)) / many


def copies_of(weight: WeightMatrix) -> list[WeightMatrix]:
    """``weight``, and as many copies of it as do not fit the L2 cache together."""
    size = weight.planes["codes"].nbytes
    more = 0 if size >= COLD_BYTES else max(2, min(MOST, -(-COLD_BYTES // size)) - 1)
    planes = [{n: plane.clone() for n, plane in weight.planes.items()} for _ in range(more)]
    return [weight, *(replace(weight, planes=own) for own in planes)]


def measure(case: Case, counts: list[int], seconds: float, device: torch.device) -> Iterator[Any]:
    held = copies_of(weights.prepare_linear(weight_of(case, device)))
    kept = [replace(weight, allow_a8=False) for weight in held]
    weight_bytes, sets = held[0].planes["codes"].nbytes, len(held)
    for count in counts:
        x = torch.randn(count, case.columns, device=device).bfloat16()
        codes, scales = rounded.quantised_rows(x)
        calls: dict[str, Call] = {
            "a16": lambda n, x=x: prefill_linear.linear_prefill(x, kept[n % sets]),
            "a8": lambda n, x=x: rounded.rounded_product(x, held[n % sets]),
            "rounding": lambda n, x=x: rounded.quantised_rows(x),
            "fast sums": lambda n, c=codes, s=scales: library(c, s, held[n % sets]),
        }
        found = {
            name: microseconds(call, weight_bytes, seconds, device) for name, call in calls.items()
        }
        flops = 2 * count * case.rows * case.columns
        yield {
            "case": case.name,
            "rows": count,
            "matrix": [case.rows, case.columns],
            "us": found,
            "a8_tflops": flops / found["a8"] / 1e6,
            "error": errors(codes, scales, held[0], calls),
        }


def errors(
    codes: Tensor, scales: Tensor, weight: WeightMatrix, calls: dict[str, Call]
) -> dict[str, float]:
    """Relative errors of the first rows against the exact product of the rounded activations."""
    dense = weight.planes["codes"].double() * weight.planes["scales"].double()[:, None]
    exact = (codes[:CHECKED].double() * scales[:CHECKED].double()) @ dense.T
    given = {name: calls[name](0)[:CHECKED].double() for name in ("a8", "fast sums")}
    given["bf16"] = exact.bfloat16().double()
    return {name: float((y - exact).norm() / exact.norm()) for name, y in given.items()}


def said(found: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {value:,.0f}" for name, value in found["us"].items())
    wrong = ", ".join(f"{name} {value:.2e}" for name, value in found["error"].items())
    return (
        f"{found['case']:20} {found['rows']:5} rows: us: {times}; a8 {found['a8_tflops']:,.0f} "
        f"TFLOP/s; error: {wrong}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["27B"], choices=MODELS)
    parser.add_argument("--rows", nargs="+", type=int, default=[129, 512, 1024, 8192])
    parser.add_argument("--seconds", type=float, default=0.2, help="of each call")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    chosen = [case for model in asked.models for case in cases(model)]
    if asked.tiny:
        chosen, asked.rows, asked.seconds = [Case("tiny", 64, 96)], [129], 0.0
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    results: list[Any] = []
    report = {"device": name, "torch": torch.__version__, "results": results}
    for case in chosen:
        for found in measure(case, asked.rows, asked.seconds, device):
            results.append(found)
            print(said(found), flush=True)
        # After each, so that an early end keeps what was measured.
        if asked.json is not None:
            asked.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
