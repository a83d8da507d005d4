"""The thread that builds, runs and closes one instance."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from ninfer_core.contract.engine import AvailabilityState
from ninfer_core.engine.lifecycle import Lifecycle, Stop
from ninfer_core.engine.opened import InstanceFactory, OpenedInstance


class Runnable(Protocol):
    """A core: serves until it is stopped or fails, and ends everybody who waits on it."""

    def run(self) -> None: ...


CoreFactory = Callable[[OpenedInstance], Runnable]


class EngineWorker:
    """Owns the thread. Every failure reaches somebody: of the start, the opener; of the run, every
    open response; of the close, the caller of :meth:`join`."""

    def __init__(self, factory: InstanceFactory, core: CoreFactory, lifecycle: Lifecycle) -> None:
        self._plan: tuple[InstanceFactory, CoreFactory] | None = (factory, core)
        self._lifecycle = lifecycle
        self._opened: Future[OpenedInstance] = Future()
        self._close_error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name="ninfer-worker", daemon=True)

    def start(self) -> OpenedInstance:
        """Start the thread and wait for the instance. Raises what building it raised."""
        self._thread.start()
        try:
            return self._opened.result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask the thread to end; also before it is up."""
        self._lifecycle.nudge(Stop())

    def join(self) -> None:
        """Wait for the thread. Raises what closing the instance raised, once."""
        if threading.current_thread() is self._thread:
            return
        self._thread.join()
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def _main(self) -> None:
        opened, core = self._build()
        try:
            if core is not None:
                core.run()
        finally:
            if opened is not None:
                self._close(opened)

    def _build(self) -> tuple[OpenedInstance | None, Runnable | None]:
        """Build the instance and its core; the plan goes, since it may hold the engine itself."""
        assert self._plan is not None
        (factory, make_core), self._plan = self._plan, None
        opened = None
        try:
            opened = factory()
            core = make_core(opened)
        except BaseException as error:
            self._lifecycle.shut(AvailabilityState.FAILED, str(error))
            self._opened.set_exception(error)
            return opened, None
        self._lifecycle.serves()
        self._opened.set_result(opened)
        return opened, core

    def _close(self, opened: OpenedInstance) -> None:
        try:
            opened.instance.close()
        except Exception as error:
            self._close_error = error
