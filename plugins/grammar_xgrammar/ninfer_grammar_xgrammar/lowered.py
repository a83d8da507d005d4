"""Parts in the library's notation: worked out by one thread each, and kept for a while."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any

from ninfer_grammar_xgrammar.ebnf import to_ebnf
from ninfer_grammar_xgrammar.parts import part_grammar

KEPT = 64
"""Parts that are kept as grammars."""


def key_of(part: dict[str, Any]) -> str:
    return json.dumps(part, ensure_ascii=False)


class Lowered:
    """Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._flights: dict[str, Future[str]] = {}

    def ebnf(self, part: dict[str, Any]) -> str:
        """Raises what :func:`part_grammar` raises, to all who asked meanwhile."""
        key = key_of(part)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            flight = self._flights.get(key)
            begun = flight is not None
            if flight is None:
                flight = self._flights[key] = Future()
        if not begun:
            self._work(key, part, flight)
        return flight.result()

    def _work(self, key: str, part: dict[str, Any], flight: Future[str]) -> None:
        try:
            ebnf = to_ebnf(part_grammar(part))
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            flight.set_exception(error)
            return
        with self._lock:
            del self._flights[key]
            self._kept[key] = ebnf
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        flight.set_result(ebnf)
