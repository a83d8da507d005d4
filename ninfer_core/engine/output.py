"""The last two steps of publication: make the output permanent, then show it."""

from __future__ import annotations

from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.events import Delta, FinishReason, PromptProgress
from ninfer_core.contract.frontend import OutputPreview, OutputSpan
from ninfer_core.engine.request_record import Ending, RequestRecord


def commit_output(record: RequestRecord, preview: OutputPreview) -> None:
    """Make ``preview`` part of the request's output; nothing of it is visible yet."""
    record.session.commit(preview)
    record.stop_match = preview.stop_match


def publish(record: RequestRecord, deltas: tuple[Delta, ...]) -> None:
    """Hand committed deltas to a consumer that asked for them."""
    if deltas and record.streaming:
        record.response.put(*deltas)


def publish_progress(record: RequestRecord, done: int) -> None:
    """Say how far the prompt is read to a consumer that asked for it."""
    if record.options.progress and record.streaming:
        cached = record.watch.cached_tokens
        record.response.put(PromptProgress(done=done, total=record.prompt_tokens, cached=cached))


def preview_output(record: RequestRecord, span: OutputSpan) -> OutputPreview | RequestError:
    """Interpret ``span``. A Frontend that cannot do so ends this request and no other one."""
    try:
        return record.session.preview(span)
    except EngineFailure:
        raise
    except RequestError as error:
        return error
    except Exception as error:
        return RequestError(f"the output could not be interpreted: {type(error).__name__}: {error}")


def flush(record: RequestRecord, reason: FinishReason) -> Ending:
    """End the output where it stands and publish what it had held back."""
    preview = preview_output(record, OutputSpan(token_ids=(), limit=reason))
    if isinstance(preview, RequestError):
        return preview
    commit_output(record, preview)
    publish(record, preview.deltas)
    return reason
