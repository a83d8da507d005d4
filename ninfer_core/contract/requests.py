"""What a caller asks for: a prompt and how to continue it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.sampling import MAX_LOGPROBS, SamplingParams, plain

JsonObject = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
"""Of messages."""
MEDIA_PARTS = frozenset(
    "image image_url input_image video video_url input_video audio audio_url input_audio file "
    "input_file document".split()
)
"""Types of content parts that are no text."""
MAX_SESSION_KEY_BYTES = 256
MAX_CACHE_MARKERS = 4


class CacheMode(enum.Enum):
    """Whether a request reads and feeds the context cache."""

    READ_WRITE = "read_write"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMarker:
    """An explicit reuse boundary after content part ``part`` of message ``message``."""

    message: int
    part: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRequest:
    """How one request takes part in context reuse.

    ``session_key`` is a look-up hint of at most 256 bytes, ``salt`` isolates callers from each
    other, ``markers`` name at most four boundaries worth keeping.
    """

    mode: CacheMode = CacheMode.READ_WRITE
    session_key: str | None = None
    markers: tuple[CacheMarker, ...] = ()
    salt: str | None = None

    def __post_init__(self) -> None:
        for name in ("session_key", "salt"):
            given = getattr(self, name)
            if given and not given.isascii() and any("\ud800" <= c <= "\udfff" for c in given):
                raise InvalidRequest(
                    f"{name} holds half of a surrogate pair, which is no text",
                    param=name,
                    hint="give whole characters",
                )
        if self.session_key and len(self.session_key.encode()) > MAX_SESSION_KEY_BYTES:
            raise InvalidRequest(
                f"session_key is longer than {MAX_SESSION_KEY_BYTES} bytes",
                param="session_key",
                hint="shorten it",
            )
        if len(self.markers) > MAX_CACHE_MARKERS:
            raise InvalidRequest(
                f"there are {len(self.markers)} cache markers",
                param="markers",
                hint=f"give at most {MAX_CACHE_MARKERS}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPart:
    """An image or video that a gateway has already acquired: owned bytes, never an address."""

    kind: Literal["image", "video"]
    data: bytes
    mime_type: str | None = None
    options: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """``auto``, ``none``, ``required``, or ``named`` with ``name``; ``parallel`` allows several."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """A constraint on the final content. ``value`` is the schema, grammar, regex or choices."""

    kind: Literal["text", "json_object", "json_schema", "grammar", "regex", "choice"] = "text"
    value: Any = None
    name: str | None = None
    strict: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How the template renders the conversation; None leaves the template's own default.

    ``continue_final`` renders the last assistant message open, so that output continues it.
    """

    thinking: bool | None = None
    effort: str | None = None
    template_kwargs: JsonObject = field(default_factory=dict)
    continue_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """Owned input of one request: exactly one of ``messages``, ``text`` or ``token_ids``.

    ``messages`` are JSON objects in the OpenAI chat shape, content as text or parts; ``media`` are
    the acquired parts in order of appearance.
    """

    messages: Sequence[JsonObject] | None = None
    text: str | None = None
    token_ids: Sequence[int] | None = None
    tools: Sequence[JsonObject] = ()
    tool_choice: ToolChoice = ToolChoice()
    response_format: ResponseFormat = ResponseFormat()
    media: tuple[MediaPart, ...] = ()
    chat: ChatOptions = ChatOptions()
    cache: CacheRequest = CacheRequest()

    def __post_init__(self) -> None:
        given = [n for n in ("messages", "text", "token_ids") if getattr(self, n) is not None]
        if len(given) != 1:
            raise InvalidRequest(
                "give exactly one of messages, text or token_ids; "
                f"got {', '.join(given) or 'none'}",
                param="messages",
            )


class ConsumerMode(enum.Enum):
    """STREAMING publishes deltas as they commit; AGGREGATE publishes only start and end."""

    STREAMING = "streaming"
    AGGREGATE = "aggregate"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to continue the prompt, and when to stop.

    ``max_new_tokens`` None means as many as the context holds; a larger value is clamped to the
    context and reported, and so is ``min_tokens``. ``logprobs`` k gives k alternatives per token;
    ``prompt_logprobs`` likewise for prompt positions. ``queue_timeout`` and ``deadline`` are
    seconds from submit; ``queue_timeout`` covers preparation too. ``thinking_budget`` counts
    reasoning tokens. ``progress`` asks for a ``PromptProgress`` after each chunk of the prompt.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    queue_timeout: float | None = None
    deadline: float | None = None
    thinking_budget: int | None = None
    progress: bool = False
    consumer: ConsumerMode = ConsumerMode.STREAMING

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check_count(name, getattr(self, name))
        for name in ("queue_timeout", "deadline"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Real) and float(value) >= 0):
                raise InvalidRequest(
                    f"{name} is {value!r}; it must be a number of seconds, not negative", param=name
                )
            plain(self, name, float)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not (
                isinstance(value, Integral) and 0 <= int(value) <= MAX_LOGPROBS
            ):
                raise InvalidRequest(
                    f"{name} is {value}; it must lie between 0 and {MAX_LOGPROBS}",
                    param=name,
                )
        for name in (*_COUNTS, "logprobs", "prompt_logprobs"):
            plain(self, name, int)
        self._check_stops()

    def _check_stops(self) -> None:
        if isinstance(self.stop, str) or not all(isinstance(text, str) for text in self.stop):
            raise InvalidRequest(
                f"stop is {self.stop!r}; it must be a tuple of texts", param="stop"
            )
        if any(not text for text in self.stop):
            raise InvalidRequest("a stop string is empty", param="stop", hint="leave it out")
        if not all(isinstance(token, Integral) for token in self.stop_token_ids):
            raise InvalidRequest("stop_token_ids must be whole numbers", param="stop_token_ids")


_COUNTS = ("max_new_tokens", "min_tokens", "thinking_budget")


def _check_count(name: str, value: int | None) -> None:
    if value is None:
        return
    if not isinstance(value, Integral):
        raise InvalidRequest(f"{name} is {value!r}; it must be a whole number", param=name)
    if value < 0:
        raise InvalidRequest(f"{name} is {value}; it must not be negative", param=name)
