"""What the composition root hands to an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ninfer_core.contract.cache import CachePolicy
from ninfer_core.contract.engine import DeviceUse
from ninfer_core.contract.instance import ModelInstance
from ninfer_core.engine.policies import OffPolicy


def itself(error: BaseException) -> BaseException:
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedInstance:
    """A running instance and the facts that the engine reports of it.

    ``warm_up`` says that first requests set something up; ``device_use`` is asked on the worker.
    ``explain`` turns a library's error into what it means, such as that a device was lost.
    ``grammars_named``: somebody asked for the grammar backend by name.
    """

    instance: ModelInstance
    architecture: str
    source: str
    devices: tuple[str, ...]
    max_context: int
    cache_policy: CachePolicy = field(default_factory=OffPolicy)
    details: Mapping[str, Any] = field(default_factory=dict)
    warm_up: bool = False
    device_use: Callable[[], tuple[DeviceUse, ...]] = tuple
    explain: Callable[[BaseException], BaseException] = itself
    grammars_named: bool = False


InstanceFactory = Callable[[], OpenedInstance]
"""Called once, on the worker thread, which also closes what it returns."""
