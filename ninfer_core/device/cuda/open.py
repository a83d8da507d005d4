"""Entry of the ``cuda`` device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.device.errors import DeviceUnavailable
from ninfer_core.device.probe import probe_gpu

if TYPE_CHECKING:
    from ninfer_core.device.base import Device


def open_device(index: int = 0) -> Device:
    """GPU ``index`` of those that this process sees.

    Raises DeviceUnavailable with the reason and its mend.
    """
    status = probe_gpu(index)
    if not status.ok:
        raise DeviceUnavailable(f"device cuda:{index} cannot be used: {status.reason}")
    try:
        from ninfer_core.device.cuda.device import CudaDevice
    except ImportError as error:
        raise DeviceUnavailable(
            f"device cuda:{index} cannot be used: {error}",
            hint="pip install --force-reinstall 'ninfer-core[cuda]'",
        ) from error
    return CudaDevice(index, status)
