"""The grammar backend gets ready while its engine starts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class GrammarStart:
    """Runs ``load`` on a thread of its own, beside whatever else the start does. Unless it is
    ``required``, what it raises is logged and the start goes on: requests with a form are refused.

    Not a daemon: a process that ends while a library is imported would be aborted.
    """

    def __init__(self, load: Callable[[], None] | None, *, required: bool) -> None:
        self._load = load
        self._required = required
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ninfer-grammar-load")
        if load is not None:
            self._thread.start()

    def wait(self, stage: Callable[[str], None]) -> None:
        """Until it is done; ``stage`` hears of it first. Raises what loading raised, if it had to
        succeed."""
        if self._load is None:
            return
        stage("loading the grammar backend")
        self._thread.join()
        if self._error is None:
            return
        if self._required or not isinstance(self._error, Exception):
            raise self._error
        _log.warning("requests with a form will be refused: %s", self._error)

    def _run(self) -> None:
        assert self._load is not None
        try:
            self._load()
        except BaseException as error:
            self._error = error
