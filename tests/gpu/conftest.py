"""Tests that need an NVIDIA GPU: each is marked so, and skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer_core.device.base import LaneRole
from ninfer_core.device.probe import probe_gpu

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _gpu():
    if not (status := probe_gpu(0)).ok:
        pytest.skip(status.reason)


@pytest.fixture
def device(_gpu):
    """GPU 0, with nothing allocated."""
    from ninfer_core.device.cuda.open import open_device

    opened = open_device(0)
    yield opened
    opened.close()


@pytest.fixture
def compute(device):
    """The compute lane, entered by the test's thread."""
    lane = device.lane(LaneRole.COMPUTE)
    with lane.enter():
        yield lane
