"""Request control: the engine facade, its worker, scheduling and publication."""

from __future__ import annotations

from ninfer_core.engine.facade import Engine
from ninfer_core.engine.handle import RequestHandle
from ninfer_core.engine.opened import InstanceFactory, OpenedInstance
from ninfer_core.engine.start_options import InvalidOption

__all__ = ["Engine", "InstanceFactory", "InvalidOption", "OpenedInstance", "RequestHandle"]
