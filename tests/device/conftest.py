"""The devices that every test of the interface runs on."""

from __future__ import annotations

import pytest

from ninfer_core.device.probe import probe_gpu


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def each_device(request):
    """One open device of every kind that core brings; without a GPU the ``cuda`` one is skipped."""
    if request.param == "cuda":
        if not (status := probe_gpu(0)).ok:
            pytest.skip(status.reason)
        from ninfer_core.device.cuda.open import open_device
    else:
        from ninfer_core.device.cpu import open_device
    device = open_device(0)
    yield device
    device.close()
