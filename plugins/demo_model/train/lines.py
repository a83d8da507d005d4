"""Output of the scripts: one JSON object a line."""

from __future__ import annotations

import json
import sys
from typing import Any


def emit(**fields: Any) -> str:
    """Print the fields as one JSON line, at once, and return it."""
    line = json.dumps(fields)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return line
