"""Prepares launches for sm_90 on a machine without a GPU; started by test_prepare.py.

Triton's driver and torch's view of the device are replaced, so that everything but the GPU is real:
the look-up of a launch, the compiler and its caches. ``TRITON_CACHE_DIR`` names an empty folder.
"""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget

from ninfer_core.ops.contracts.values import DrawPurpose
from ninfer_ops_triton import launch, norm, sampling
from ninfer_ops_triton.prepare import foresee, prepare

hits: list[bool] = []
"""Of each call of the compiler, whether the result lay on disk."""
started: list[str] = []
"""Kernels started on the device that is not there."""


@triton.jit
def hopeless(x, INTERPRET: tl.constexpr, PDL: tl.constexpr):
    tl.static_assert(False, "hopeless")


class Launcher:
    def __init__(self, source: Any, metadata: Any) -> None:
        self.name = source.name

    def __call__(self, *args: Any) -> None:
        started.append(self.name)


def replace_device() -> None:
    properties = {"max_shared_mem": 227 * 1024}
    triton.runtime.driver.set_active(SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        launcher_cls=Launcher,
        utils=SimpleNamespace(
            get_device_properties=lambda device: properties,
            load_binary=lambda *given: (object(), object(), 32, 0, 1024),
        ),
    ))  # fmt: skip
    launch.on_gpu = lambda: True
    launch.driver = lambda: SimpleNamespace(prefer_shared_memory=lambda *given: None)
    launch.multiprocessors = lambda: 132
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda device: None
    torch.cuda.get_device_capability = lambda device=None: (9, 0)


def body() -> None:
    """Aligned and unaligned addresses, integers that are 1, multiples of 16 and neither."""
    for count in (1, 3, 16):
        for offset in (0, 1):
            seeds = torch.zeros(offset + 1, dtype=torch.int64)[offset:]
            positions = torch.zeros(offset + count, dtype=torch.int32)[offset:]
            sampling.numbers(seeds, positions, DrawPurpose.DECODE)
    x = torch.zeros(4, 128, dtype=torch.bfloat16)
    for _ in range(3):
        norm.OPS["rms_norm"](x, torch.zeros(128), 1e-6)


def forget() -> None:
    """Only the disk remembers."""
    launch._ready.clear()
    for entry in foresee(body):
        entry.kernel.device_caches.clear()
    hits.clear()
    started.clear()


def check_that_the_real_launches_find_all() -> None:
    expected = len(foresee(body))
    assert expected == 7, expected
    prepare(body)
    assert hits == [False] * expected, hits
    assert started == []
    body()
    assert len(hits) == expected, "a real launch compiled again"
    assert len(started) == 9, started
    forget()
    body()
    assert hits == [True] * expected, f"keys on disk are not those of real launches: {hits}"
    forget()
    prepare(body)
    body()
    assert hits == [True] * expected, hits


def check_that_failures_are_said_and_end_nothing(said: list[str]) -> None:
    def with_one_that_fails() -> None:
        launch.launch(hopeless, (1,), torch.zeros(1))
        body()

    def broken() -> None:
        raise ValueError("broken")

    forget()
    prepare(with_one_that_fails)
    assert len(said) == 1, said
    assert "hopeless: CompileTimeAssertionFailure" in said[0], said
    before = len(hits)
    body()
    assert len(hits) == before
    prepare(broken)
    assert len(said) == 2, said
    assert "a rehearsal failed" in said[1], said
    assert launch.observers == []


def main() -> None:
    said: list[str] = []
    log = logging.getLogger("ninfer.ops_triton")
    log.addHandler(SimpleNamespace(level=0, handle=lambda record: said.append(record.getMessage())))
    knobs.compilation.listener = lambda **facts: hits.append(facts["cache_hit"])
    replace_device()
    check_that_the_real_launches_find_all()
    assert said == [], said
    check_that_failures_are_said_and_end_nothing(said)


if __name__ == "__main__":
    sys.exit(main())
