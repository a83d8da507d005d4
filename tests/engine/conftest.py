"""Shared by the engine tests: requests in one line, outputs without an end."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.contract.resources import ProgramLimits
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.opened import OpenedInstance
from ninfer_core.testing.fake_instance import fake_factory
from ninfer_core.testing.fake_transactions import FakeConfig


@pytest.fixture
def options() -> Callable[..., GenerationOptions]:
    """Options with a seed, so that the fake model's answer is known."""

    def make(max_new_tokens: int | None = 5, *, seed: int = 1, **rest: object) -> GenerationOptions:
        return GenerationOptions(
            sampling=SamplingParams(seed=seed), max_new_tokens=max_new_tokens, **rest
        )

    return make


@pytest.fixture
def endless_factory() -> Callable[[], OpenedInstance]:
    """Two lanes with room for outputs that take far longer than any test."""
    limits = ProgramLimits(max_context=1 << 20, max_concurrency=2, prefill_chunk=8, vocab_rows=64)
    return fake_factory(limits, FakeConfig(pages=1 << 20))


@pytest.fixture
def machine() -> ModuleType:
    """The module of the state machine, afresh: a planted bug leaves no trace in it."""
    path = Path(__file__).with_name("test_machine.py")
    spec = importlib.util.spec_from_file_location("engine_machine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
