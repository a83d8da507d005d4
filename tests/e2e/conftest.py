"""The demo model behind the real engine, shared by a whole run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def demo_engine() -> Iterator[Engine]:
    options = EngineOptions(
        devices=("cpu",), max_concurrency=8, max_pending=512, max_context=4096, queue_timeout=None
    )
    with Engine.open("demo", options) as engine:
        yield engine


@pytest.fixture(scope="session")
def accept_scripts() -> Iterator[None]:
    """Makes `bench/accept` importable: the tests run a share of what it runs in full."""
    folder = str(ROOT / "bench" / "accept")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)
