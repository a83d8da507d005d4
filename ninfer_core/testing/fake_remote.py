"""The fake engine in a process of its own, with faults that only a process can have."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.errors import InvalidSchema
from ninfer_core.contract.resources import ProgramLimits
from ninfer_core.engine.opened import InstanceFactory, OpenedInstance
from ninfer_core.engine.remote.plan import RemotePlan, TextSide
from ninfer_core.plugins.selection import Selection
from ninfer_core.testing.fake_frontend import FakeFrontend
from ninfer_core.testing.fake_instance import FakeScoring, fake_opened
from ninfer_core.testing.fake_transactions import FakeConfig

Fault = Literal["", "start", "crash", "round", "exit", "close"]
EXIT_CODE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeStart:
    """A fake model by its sizes.

    ``round_seconds`` is what a decode round takes beyond its own work; with ``scores`` the model
    scores and does not generate. ``fault``: ``start`` and ``crash`` fail to open, with an error of
    NInfer's and another; after ``rounds`` decode rounds ``round`` breaks the engine and ``exit``
    ends the process; ``close`` never closes.
    """

    max_context: int = 256
    max_concurrency: int = 8
    vocab: int = 64
    round_seconds: float = 0.0
    scores: bool = False
    fault: Fault = ""
    rounds: int = 5


def open_locally(start: FakeStart) -> OpenedInstance:
    """The instance of ``start``, faults included."""
    if start.fault == "start":
        raise InvalidSchema("the start failed", pointer="/a/0", param="field")
    if start.fault == "crash":
        raise ZeroDivisionError("by hand")
    if start.scores:
        return fake_opened(program=FakeScoring())
    limits = ProgramLimits(
        max_context=start.max_context,
        max_concurrency=start.max_concurrency,
        prefill_chunk=8,
        vocab_rows=start.vocab,
    )
    pages = -(-start.max_context // 4) * start.max_concurrency
    opened = fake_opened(limits, FakeConfig(pages=pages, slots=start.max_concurrency))
    program: Any = opened.instance.program
    program.launch_decode = _launching(program.launch_decode, start)
    if start.fault == "close":
        program.close = lambda: time.sleep(3600)
    return opened


def open_fake(source: str, options: EngineOptions, host: object) -> InstanceFactory:
    """What the child calls; ``source`` is the start as JSON."""
    logging.getLogger("ninfer.fake").info("opening %s", source)
    return lambda: open_locally(FakeStart(**json.loads(source)))


def fake_plan(start: FakeStart, selection: Selection | None = None) -> RemotePlan:
    """How a ``RemoteEngine`` starts with ``start``; core's own plug-in is all that it loads."""
    return RemotePlan(
        opener=f"{__name__}:open_fake",
        source=json.dumps(asdict(start)),
        selection=selection or Selection(autoload=False),
        text_side=lambda: TextSide(
            frontend=FakeFrontend(start.max_context, start.vocab), close=lambda: None
        ),
    )


def _launching(launch: Callable[..., Any], start: FakeStart) -> Callable[..., Any]:
    count = 0

    def launch_decode(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count > start.rounds and start.fault == "round":
            raise ZeroDivisionError("a round broke")
        if count > start.rounds and start.fault == "exit":
            os._exit(EXIT_CODE)
        launched = launch(*arguments, **named)
        if start.round_seconds:
            launched.collect = _after(start.round_seconds, launched.collect)
        return launched

    return launch_decode


def _after(seconds: float, collect: Callable[[], Any]) -> Callable[[], Any]:
    def late() -> Any:
        time.sleep(seconds)
        return collect()

    return late
