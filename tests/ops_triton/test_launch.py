"""How kernels are handed on where there is a GPU, by stand-ins and a kernel that notes calls."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from ninfer_ops_triton import launch as launching  # noqa: E402

LAUNCHED_WITH = 10
"""Number, grid, stream, function, metadata and three hooks come before a kernel's arguments."""


class OnDevice(torch.Tensor):
    is_cuda = True


def on_device(count: int, dtype=torch.bfloat16, skip: int = 0):
    """A tensor at a multiple of 16 bytes, or ``skip`` bytes behind one."""
    memory = torch.zeros(16 * count + 64, dtype=torch.uint8)
    first = -memory.data_ptr() % 16 + skip
    words = memory[first : first + count * dtype.itemsize].view(dtype)
    assert words.data_ptr() % 16 == skip % 16
    return words.as_subclass(OnDevice)


class Kernel:
    """Notes what it was compiled for and what it was run with."""

    __name__ = "noted"
    arg_names = ("x", "out", "count", "BLOCK", "KIND", "INTERPRET", "PDL")

    def __init__(self) -> None:
        self.fn = lambda: None
        self.compiled: list[dict] = []
        self.runs: list[tuple] = []

    def __getitem__(self, grid):
        def first(*args, **options):
            self.compiled.append(options)
            number = len(self.compiled)
            run = lambda *given: self.runs.append((number, *given))  # noqa: E731
            return SimpleNamespace(run=run, function=100 + number, packed_metadata=("m", number))

        return first


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launching, "INTERPRET", False)
    monkeypatch.setattr(launching, "on_gpu", lambda: True)
    monkeypatch.setattr(launching, "_ready", {})
    monkeypatch.setattr(launching, "_capability", lambda device: (9, 0))
    monkeypatch.setattr(launching, "_streams", lambda: lambda device: 7000 + device)
    monkeypatch.setattr(launching.torch.cuda, "current_device", lambda: 3)
    preferred = []
    fake = SimpleNamespace(prefer_shared_memory=lambda *given: preferred.append(given))
    monkeypatch.setattr(launching, "driver", lambda: fake)
    noted = Kernel()
    noted.preferred = preferred
    return noted


def test_the_first_launch_compiles_and_later_ones_run_what_it_gave(kernel) -> None:
    x, out = on_device(8), on_device(8)
    for _ in range(3):
        launching.launch(kernel, (5, 2), x, out, 48, warps=8, dependent=True, KIND="a", BLOCK=16)
    constants = {"KIND": "a", "BLOCK": 16, "INTERPRET": False, "PDL": True}
    assert kernel.compiled == [
        {**constants, "num_warps": 8, "num_stages": 2, "launch_pdl": True},
    ]
    assert kernel.preferred == [(101, launching.SHARED_MEMORY)]
    # Constants lie in the order of the kernel's arguments, not in that of the call.
    addresses = (x.data_ptr(), out.data_ptr())
    run = (1, 5, 2, 1, 7003, 101, ("m", 1), None, None, None, *addresses, 48, 16, "a", False, True)
    assert kernel.runs == [run, run]


def test_memory_of_the_host_is_given_as_it_is(kernel) -> None:
    """The driver says where it lies on the device, or that it cannot be reached."""
    x, host = on_device(8), torch.zeros(8, dtype=torch.bfloat16)
    for _ in range(2):
        launching.launch(kernel, (1,), x, host, 48, BLOCK=16, KIND="a")
    [run] = kernel.runs
    assert run[LAUNCHED_WITH] is x
    assert run[LAUNCHED_WITH + 1] is host
    other = on_device(8)
    for _ in range(2):
        launching.launch(kernel, (1,), x, other, 48, BLOCK=16, KIND="a")
    assert kernel.runs[1][LAUNCHED_WITH : LAUNCHED_WITH + 2] == (x.data_ptr(), other.data_ptr())


ARGUMENTS = {
    "bf16": on_device(4),
    "bf16 elsewhere": on_device(5),
    "bf16, odd address": on_device(4, skip=2),
    "fp32": on_device(4, torch.float32),
    "0": 0, "1": 1, "2": 2, "3": 3, "16": 16, "48": 48, "-16": -16, "-1": -1,
    "last narrow": 2**31 - 1, "first wide": 2**31, "wide": 2**31 + 1, "low": -(2**31),
    "lower": -(2**31) - 1, "true": True, "float": 0.5, "another": 1.0, "none": None,
}  # fmt: skip


def test_arguments_are_told_apart_where_triton_compiles_apart() -> None:
    """Two that are alike by ``specialisation`` share a kernel, others do not."""
    shared = 0
    for first, second in combinations(ARGUMENTS.values(), 2):
        forms = [launching._described((argument,))[1] for argument in (first, second)]
        alike = launching.specialisation(first) == launching.specialisation(second)
        if isinstance(first, bool) or isinstance(second, bool):
            assert forms[0] != forms[1]
            continue
        assert (forms[0] == forms[1]) == alike, (first, second)
        shared += alike
    assert shared >= 9


def test_places_of_arguments_are_told_apart() -> None:
    x, y = on_device(4), on_device(4, torch.float32)
    cases = [(x, y), (y, x), (x, 1), (1, x), (x, 16, 3), (x, 3, 16), (x, None), (None, x)]
    forms = [tuple(launching._described(case)[1]) for case in cases]
    assert len(set(forms)) == len(cases)


@pytest.mark.parametrize(
    "other", [{"warps": 8}, {"stages": 3}, {"dependent": True}, {"releasing": True}, {"KIND": "b"}]
)
def test_options_and_constants_are_told_apart(kernel, other) -> None:
    x = on_device(8)
    for options in ({}, other):
        launching.launch(kernel, (1,), x, x, 48, **{"BLOCK": 16, "KIND": "a", **options})
    assert len(kernel.compiled) == 2
    assert not kernel.runs


def test_a_dry_run_is_seen_and_launches_nothing(kernel) -> None:
    x, seen = on_device(8), []
    launching.observers.append(lambda *given: seen.append(given))
    try:
        with launching.dry_run():
            launching.launch(kernel, (4,), x, x, 48, dependent=True, BLOCK=16, KIND="a")
        assert not kernel.compiled
        launching.launch(kernel, (4,), x, x, 48, dependent=True, BLOCK=16, KIND="a")
    finally:
        launching.observers.pop()
    assert len(kernel.compiled) == 1
    for noted, grid, args, options in seen:
        assert (noted, grid, options) == (kernel, (4,), kernel.compiled[0])
        assert args[2] == 48
    assert len(seen) == 2


def test_pieces() -> None:
    assert [launching.cdiv(n, 4) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
