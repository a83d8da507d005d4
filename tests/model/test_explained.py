"""What a library threw, as the composition root tells it."""

from __future__ import annotations

from typing import Any

from ninfer_core.device.errors import DeviceError, DeviceLost
from ninfer_core.instance import explained


class Knows:
    """A device to which every text that ends alike belongs."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def explain(self, error: BaseException) -> DeviceError | None:
        return DeviceLost(f"{self.mark} was lost") if str(error).endswith(self.mark) else None


def test_the_device_that_knows_an_error_tells_it() -> None:
    devices: list[Any] = [Knows("one"), Knows("two")]
    assert str(explained(RuntimeError("code 719 of two"), devices)) == "two was lost"
    other = ValueError("mine")
    assert explained(other, devices) is other
    said = DeviceError("two")
    assert explained(said, devices) is said
