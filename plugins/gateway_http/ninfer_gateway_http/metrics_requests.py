"""What the gateway itself sees of requests: how long their parts took, and how HTTP answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from ninfer_core.contract.engine import GenerationHandle
from ninfer_core.contract.events import Finished, GenerationEvent, GenerationResult
from ninfer_gateway_http.metrics_text import Histogram

_FIRST: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN: Final = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0),
)
_WHOLE: Final = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS: Final = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


class RequestMetrics:
    """Histograms of finished requests, in seconds and tokens, and the replies by route and status.

    Times are those that the engine reports in each result, so that they do not depend on how the
    caller reads; a request that its caller left is not among them. Used on the event loop alone.
    """

    def __init__(self) -> None:
        self.first_token = Histogram(_FIRST)
        self.between_tokens = Histogram(_BETWEEN)
        self.per_token = Histogram(_BETWEEN)
        self.whole = Histogram(_WHOLE)
        self.queue = Histogram(_WHOLE)
        self.prefill = Histogram(_WHOLE)
        self.decode = Histogram(_WHOLE)
        self.prompt_tokens = Histogram(_TOKENS)
        self.generation_tokens = Histogram(_TOKENS)
        self.drafted = 0
        self.accepted = 0
        self.replies: Counter[tuple[str, str, int]] = Counter()

    def watched(self, handle: GenerationHandle) -> GenerationHandle:
        """``handle``, whose result is counted when it is read."""
        return _Watched(handle, self.observe)

    def observe(self, result: GenerationResult) -> None:
        usage, times = result.usage, result.timings
        before = times.prepare + times.queue + times.prefill
        self.prompt_tokens.observe(usage.prompt_tokens)
        self.generation_tokens.observe(usage.completion_tokens)
        self.queue.observe(times.queue)
        self.prefill.observe(times.prefill)
        self.decode.observe(times.decode)
        self.whole.observe(before + times.decode)
        if usage.completion_tokens:
            self.first_token.observe(before)
        later = usage.completion_tokens - 1
        if later > 0:
            self.per_token.observe(times.decode / later)
            self.between_tokens.observe(times.decode / later, later)
        self.drafted += sum(times.drafted)
        self.accepted += sum(times.accepted)


class _Watched:
    """A handle that tells of its result."""

    def __init__(self, handle: GenerationHandle, seen: Callable[[GenerationResult], None]) -> None:
        self._handle = handle
        self._seen = seen
        self.subscribe = handle.subscribe
        self.result = handle.result
        self.cancel = handle.cancel
        self.close = handle.close

    @property
    def request_id(self) -> str:
        return self._handle.request_id

    def __iter__(self) -> Iterator[GenerationEvent]:
        while (event := self.next_event()) is not None:
            yield event

    def next_event(self, timeout: float | None = None) -> GenerationEvent | None:
        event = self._handle.next_event(timeout)
        if isinstance(event, Finished):
            self._seen(event.result)
        return event
