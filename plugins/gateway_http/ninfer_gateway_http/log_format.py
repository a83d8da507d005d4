"""What is logged, as lines for people or one JSON object a line."""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Literal

LogFormat = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """``time`` in UTC, ``level``, ``logger``; then the facts of a request, or ``message`` and
    ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        entry |= getattr(record, "facts", None) or {"message": record.getMessage()}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def log_to_stderr(level: str, style: LogFormat) -> None:
    """Log what NInfer says from ``level`` on, and warnings of the server below it."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if style == "json" else text)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("ninfer").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
