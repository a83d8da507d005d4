"""What the server was started with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Fixed at start. Times in seconds.

    ``model_id`` replaces the model's own public name. Without ``api_keys`` everybody may call.
    Pages of ``cors_origins`` may read replies. ``drain`` is how long running requests may finish
    after a stop signal. ``keep_alive`` is the silence after which a stream sends a comment.
    ``strict`` makes an unknown field an error. ``request_timeout`` is the longest that a request
    may take, ``queue_timeout`` that it may wait before the engine takes it up, ``receive_timeout``
    that its head, and then its body, may take to arrive, and ``stall_timeout`` how long a peer may
    leave its reply unread. ``log_prompts`` puts the bodies of requests into the log. Stored
    responses stay within ``max_responses`` and ``max_response_bytes``.
    """

    model_id: str | None = None
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    default_max_tokens: int | None = None
    strict: bool = False
    max_body_bytes: int = 64 << 20
    keep_alive: float = 10.0
    drain: float = 30.0
    request_timeout: float | None = None
    queue_timeout: float | None = None
    receive_timeout: float = 60.0
    stall_timeout: float = 30.0
    log_prompts: bool = False
    max_responses: int = 1024
    max_response_bytes: int = 256 << 20
