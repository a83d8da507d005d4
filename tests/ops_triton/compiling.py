"""Compiles recorded launches on a machine without a GPU; started by test_compiles.py.

``python compiling.py SM [PART ...]`` prints a line per kernel that does not compile for sm_SM, 90
or 80, and at the end how many did. PART is a part of the names of entries; without any, all are
taken.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton
from harness import Launch, recorded_launches
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ninfer_ops_triton import launch

FOLDER = Path(__file__).parent
SHARED_LIMITS = {90: 227 * 1024, 80: 163 * 1024}
"""Bytes that a program may have on the largest device of each target."""
OPTIONS = ("num_warps", "num_stages", "launch_pdl", "maxnreg", "num_ctas")

work: list[tuple[str, Launch]] = []


def entries(parts: list[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Name and call of every LAUNCHES entry."""
    for path in sorted(FOLDER.glob("launches_*.py")):
        for name, call in importlib.import_module(path.stem).LAUNCHES.items():
            full = f"{path.stem.removeprefix('launches_')}.{name}"
            if not parts or any(part in full for part in parts):
                yield full, call


def collect(parts: list[str], sm: int = 90) -> list[tuple[str, Launch]]:
    """Distinct launches; the first of each kernel in an entry also without dependent launch."""
    found: dict[Launch, str] = {}
    for name, call in entries(parts):
        with launch.dry_run(divmod(sm, 10)), recorded_launches() as launches:
            call()
        assert launches, f"{name} launched nothing"
        kernels = set()
        for entry in launches:
            found.setdefault(entry, name)
            if entry.kernel not in kernels:
                kernels.add(entry.kernel)
                found.setdefault(independent(entry), name)
    return [(name, entry) for entry, name in found.items()]


def independent(entry: Launch) -> Launch:
    """The launch on a device that has no programmatic dependent launch."""
    options = dict(entry.options) | {"PDL": False}
    options.pop("launch_pdl", None)
    return Launch(entry.kernel, entry.args, tuple(sorted(options.items())))


def source(entry: Launch) -> tuple[ASTSource, dict[str, Any]]:
    """The compiler's input and options."""
    rest = dict(entry.options)
    options = {name: rest.pop(name) for name in OPTIONS if name in rest}
    params = entry.kernel.params
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attrs: dict[tuple[int], list[list[Any]]] = {}
    for place, param in enumerate(params):
        if place < len(entry.args):
            kind, fact = entry.args[place]
            if param.do_not_specialize and isinstance(fact, int):
                kind, fact = ("i32" if kind == "constexpr" else kind), False
            assert not param.is_constexpr or kind == "constexpr" or param.name not in rest
        else:
            kind, fact = "constexpr", rest.pop(param.name, param.default)
        signature[param.name] = kind
        if kind == "constexpr":
            constants[param.name] = fact
        elif fact:
            attrs[(place,)] = [["tt.divisibility", 16]]
    assert not rest, f"{entry.kernel.__name__} takes no {sorted(rest)}"
    return ASTSource(entry.kernel, signature, constants, attrs), options


def attempt(sm: int, index: int) -> str | None:
    """What is wrong with a launch, or None."""
    name, entry = work[index]
    label = f"{name}: {entry.kernel.__name__} {dict(entry.options)}"
    try:
        ast, options = source(entry)
        compiled = triton.compile(ast, target=GPUTarget("cuda", sm, 32), options=options)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        return f"{label}: {type(error).__name__}: {error}"
    if compiled.metadata.shared > SHARED_LIMITS[sm]:
        return f"{label}: {compiled.metadata.shared} bytes of shared memory"
    return None


def main(sm: int, parts: list[str]) -> int:
    """Compile in as many processes as there are cores; the exit code is 1 when one failed."""
    work.extend(collect(parts, sm))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        failures = [why for why in pool.map(partial(attempt, sm), range(len(work))) if why]
    said = [*failures, f"{len(work) - len(failures)} of {len(work)} compiled"]
    sys.stdout.write("\n".join(said) + "\n")
    return 1 if failures or not work else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
