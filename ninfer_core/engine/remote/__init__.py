"""The engine in a process of its own, behind the same interface.

``engine`` is what the serving process holds, ``child`` what runs in the engine's process; ``link``
and ``served`` are their two ends. ``channel`` moves messages, which ``frames``, ``wire_events`` and
``wire_errors`` turn into bytes.
"""

from __future__ import annotations

from ninfer_core.engine.remote.engine import RemoteEngine
from ninfer_core.engine.remote.plan import RemotePlan, TextSide

__all__ = ["RemoteEngine", "RemotePlan", "TextSide"]
