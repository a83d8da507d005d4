"""Failures of one request, and the failure of the whole engine.

A :class:`RequestError` ends one request and leaves the engine serving. An :class:`EngineFailure`
means that an invariant broke or that a mutation could not be made stable: the engine stops being
available and every open response ends with it.
"""

from __future__ import annotations

from ninfer_core.errors import NinferError


class RequestError(NinferError):
    """Ends one request. ``code`` is stable and machine readable; ``param`` names the field."""

    code = "request_error"

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class InvalidRequest(RequestError):
    """A field has a value that no model could serve (wrong type, range or combination)."""

    code = "invalid_request"
    exit_code = 2


class InvalidPrompt(RequestError):
    """The prompt cannot be rendered or represented (empty, unknown role, template error)."""

    code = "invalid_prompt"
    exit_code = 2


class ContextLengthExceeded(RequestError):
    """The prompt alone does not fit the context."""

    code = "context_length_exceeded"
    exit_code = 2

    def __init__(self, prompt_tokens: int, max_context: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens or more; the context holds {max_context}",
            param="messages",
            hint="shorten the prompt or start with a larger --max-context",
        )
        self.prompt_tokens = prompt_tokens
        self.max_context = max_context


class InvalidSchema(RequestError):
    """A constraint's source is invalid, unsupported or unsatisfiable at ``pointer`` (RFC 6901).

    ``code`` is invalid_, unsupported_ or unsatisfiable_json_schema, or invalid_ or unsupported_
    with grammar, regex or choice.
    """

    code = "invalid_json_schema"
    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        pointer: str = "",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.pointer = pointer
        if code is not None:
            self.code = code


class Unsupported(RequestError):
    """A known feature that this engine, as started, does not serve."""

    code = "unsupported"
    exit_code = 2


class Overloaded(RequestError):
    """The outstanding capacity (resident plus pending requests) is used up."""

    code = "server_overloaded"


class QueueTimeout(RequestError):
    """The queue deadline passed before the request was admitted."""

    code = "request_queue_timeout"


class DeadlineExceeded(RequestError):
    """The request's own deadline passed while it ran."""

    code = "request_deadline_exceeded"


class MediaError(RequestError):
    """A media part could not be acquired, decoded or represented."""

    code = "invalid_media"
    exit_code = 2


class ConstraintDeadEnd(RequestError):
    """No token continues the row's constraint; nothing of the round was committed for it."""

    code = "constraint_dead_end"


class NonFiniteOutput(RequestError):
    """The row's logits held NaN or infinity; its state is released and never reused."""

    code = "nonfinite_output"


class Infeasible(RequestError):
    """The request alone does not fit the resources, even with everything else released."""

    code = "infeasible"


class Cancelled(RequestError):
    """The request was cancelled before it produced a result."""

    code = "cancelled"


class Unavailable(RequestError):
    """The engine is closed, draining or failed."""

    code = "service_unavailable"


class EngineFailure(NinferError):
    """An invariant broke: stale handle, foreign permit, half a commit. Never a cache miss."""


class CacheFault(EngineFailure):
    """Kept contexts, or what is said of them, contradict themselves; no sequence was touched yet.

    The engine drops its cache and goes on (``Program.forget``), where it asked for the sake of the
    cache; anywhere else this is the failure that it inherits from.
    """
