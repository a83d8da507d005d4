"""Count the kernels of a round, plain and speculative (MTP), by name, without a GPU.

Usage: TRITON_INTERPRET=1 python bench/count_kernels.py [--models 0.8b 9b] [--drafts 3] [--rows 1]
       [--drawn] [--list]

Bodies that a device would capture as graphs run in a model of the size's layers and heads, narrow
elsewhere, with launches recorded and left out: what is launched depends on neither weights nor
widths. A torch op that neither makes a view nor only takes memory counts as one kernel, which is
what most of them are. ``--list`` gives every kernel in its order. Folds stand in a speculative
round too, since each round is folded once; copies to and from the host do not.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ninfer_core.contract.instance import Budget
from ninfer_core.device.cpu import open_device
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.select import select_ops
from ninfer_ops_triton import launch
from ninfer_ops_triton.backend import BACKEND
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.geometry.table import SIZES, Size, config_of
from ninfer_qwen3_5.load.text import TextLoader
from ninfer_qwen3_5.model.lending import LentParts
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.drafting import Drafting
from ninfer_qwen3_5.program.layout import Numerics, own_cache
from ninfer_qwen3_5.program.queued.rehearsal import Rehearsal
from ninfer_qwen3_5.program.queued.rounds import Part
from ninfer_spec_mtp.drafter import MtpDrafter

NARROW: dict[str, Any] = {"hidden": 128, "inner": 256}
VOCABULARY = 512
NO_KERNEL = ("empty", "zero_", "detach", "alias", "lift_fresh", "_unsafe_view", "resize_")
"""Beginnings of names. Memory is cleared here alone: it is left as it was on a device."""


class Zeros(TorchFunctionMode):
    """Memory that no kernel writes reads as zeros, so that it can be used as an index."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.empty, torch.empty_like, torch.Tensor.new_empty):
            result.zero_()
        return result


class Counting(TorchDispatchMode):
    """Names of the kernels that run inside, torch's with ``aten.`` before them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __enter__(self) -> Counting:
        launch.observers.append(self._note)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        launch.observers.remove(self._note)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        result = func(*args, **(kwargs or {}))
        if not (name.startswith(NO_KERNEL) or (func.is_view and _shares(result, args[0]))):
            self.names.append(f"aten.{name}")
        return result

    def _note(self, kernel: Any, grid: Any, args: Any, options: dict[str, Any]) -> None:
        kind = options.get("EPILOGUE")
        self.names.append(f"{kernel.__name__}.{kind}" if kind else kernel.__name__)


def _shares(result: Any, given: torch.Tensor) -> bool:
    """Whether what may be a view is one; ``to`` and ``contiguous`` copy where they must."""
    first = result if isinstance(result, torch.Tensor) else result[0]
    return bool(first.untyped_storage().data_ptr() == given.untyped_storage().data_ptr())


class RandomSource:
    """Parameters of any name and shape."""

    def matrix(self, prefix: str, shapes: Any, use: str | None) -> WeightMatrix:
        rows = sum(shape[0] for shape in shapes.values())
        columns = next(iter(shapes.values()))[-1]
        weight = torch.zeros(rows, columns, dtype=torch.bfloat16)
        return WeightMatrix("bf16", rows, columns, {"weight": weight})

    def vector(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(shape)


class Counted(Exception):
    """Ends the building of an engine that nobody needs."""


def count(size: Size, drafts: int, rows: int, part: Part) -> dict[str, list[str]]:
    """Kernels of each graph of a round of ``rows`` rows."""
    narrow = replace(size, **NARROW)
    config = TextConfig.from_json(config_of(narrow) | {"vocab_size": VOCABULARY})
    ops = select_ops(BACKEND, "counted").ops
    loader = TextLoader(RandomSource(), config, ops)
    model = TextModel(config, loader.load(), ops, VOCABULARY)
    drafting = None
    if drafts:
        drafter = MtpDrafter(own_cache(config))
        drafter.bind(LentParts(model, loader, "mtp"))
        drafting = Drafting(drafter, drafts)
    found: dict[str, list[str]] = {}

    def prepare(rehearsal: Callable[[], None]) -> None:
        assert isinstance(rehearsal, Rehearsal)
        found.update(bodies(rehearsal, drafts, rows, part))
        raise Counted

    budget = Budget(max_context=256, max_concurrency=rows, prefill_chunk=32)
    with ExitStack() as held, Zeros(), launch.dry_run():
        try:
            numerics = Numerics("bfloat16", "bf16")
            generation_program(model, budget, open_device(), numerics, held, prepare, drafting)
        except Counted:
            pass
    return found


def bodies(rehearsal: Rehearsal, drafts: int, rows: int, part: Part) -> dict[str, list[str]]:
    if not drafts:
        return {"round": counted(lambda: rehearsal._rounds.run(rows, part))}
    spec = rehearsal._speculation
    assert spec is not None
    return {
        "verify": counted(lambda: spec.run(rows, part, spec.held(rows, drafts + 1))),
        "drafts": counted(lambda: spec.run_drafts(rows, drafts)),
        "fold": counted(lambda: spec.run_fold(rows)),
    }


def counted(body: Callable[[], object]) -> list[str]:
    with Counting() as seen:
        body()
    return seen.names


def report(size: str, found: dict[str, list[str]], *, listed: bool) -> None:
    total = sum(map(len, found.values()))
    torch_ops = sum(name.startswith("aten.") for names in found.values() for name in names)
    print(f"{size}: {total} kernels, {torch_ops} of them torch's")
    for graph, names in found.items():
        print(f"  {graph}: {len(names)}")
        if listed:
            print("   ", " ".join(names))
        else:
            for name, times in Counter(names).items():
                print(f"    {times:4} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["0.8b", "9b"], choices=tuple(SIZES))
    parser.add_argument("--drafts", type=int, default=3, help="0 counts plain rounds alone")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--drawn", action="store_true", help="rounds that draw their tokens")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    part = Part.DRAWN if options.drawn else Part.GREEDY
    for size in options.models:
        for drafts in dict.fromkeys((0, options.drafts)):
            found = count(SIZES[size], drafts, options.rows, part)
            name = f"{size}, {drafts} drafts" if drafts else f"{size}, plain"
            report(name, found, listed=options.list)


if __name__ == "__main__":
    main()
