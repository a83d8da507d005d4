"""What may be uploaded to where."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.device.errors import DeviceError


def check_upload(source: Tensor, target: Tensor, device: torch.device) -> None:
    """Refuse a pair that :meth:`ninfer_core.device.base.Device.upload` does not take.

    Raises DeviceError.
    """
    if source.device.type != "cpu":
        raise DeviceError(f"upload: the source lies on {source.device}, not in host memory")
    if target.device != device:
        raise DeviceError(f"upload: the target lies on {target.device}, not on {device}")
    if source.shape != target.shape or source.dtype != target.dtype:
        raise DeviceError(
            f"upload: {_described(source)} does not fill {_described(target)}",
            hint="give both the same shape and dtype",
        )
    if not (source.is_contiguous() and target.is_contiguous()):
        which = "target" if source.is_contiguous() else "source"
        raise DeviceError(f"upload: the {which} is not contiguous")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
