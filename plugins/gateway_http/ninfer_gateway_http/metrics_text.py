"""Prometheus text, version 0.0.4: families of samples, and histograms that count by bounds.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

Labels = Mapping[str, str]
Sample = tuple[Labels, float]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Histogram:
    """How many observations were at most each of ``bounds``, which rise; their sum and number.

    Not thread safe: observed on the event loop alone.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def samples(self, name: str, labels: Labels) -> Iterable[tuple[str, Labels, float]]:
        """The lines of this histogram: cumulative counts, sum, number."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            yield f"{name}_bucket", {**labels, "le": _number(bound)}, total
        yield f"{name}_sum", labels, self.sum
        yield f"{name}_count", labels, total


class MetricsText:
    """Collects families; a family without samples is left out."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def gauge(self, name: str, about: str, samples: float | Iterable[Sample]) -> None:
        self._family(name, "gauge", about, _lines(name, samples))

    def counter(self, name: str, about: str, samples: float | Iterable[Sample]) -> None:
        """``name`` ends in ``_total``, as the format asks of counters."""
        self._family(name, "counter", about, _lines(name, samples))

    def histogram(self, name: str, about: str, value: Histogram, labels: Labels) -> None:
        lines = [_line(*sample) for sample in value.samples(name, labels)]
        self._family(name, "histogram", about, lines)

    def render(self) -> str:
        return "\n".join([*self._lines, ""])

    def _family(self, name: str, kind: str, about: str, lines: Sequence[str]) -> None:
        if lines:
            self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *lines]


def _lines(name: str, samples: float | Iterable[Sample]) -> list[str]:
    given: Iterable[Sample] = [({}, samples)] if isinstance(samples, int | float) else samples
    return [_line(name, labels, value) for labels, value in given]


def _line(name: str, labels: Labels, value: float) -> str:
    said = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    return f"{name}{{{said}}} {_number(value)}" if said else f"{name} {_number(value)}"


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(value)
