"""What the acceptance scripts share: the demo engine, and the conditions they print."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ninfer_core.contract.engine import EngineOptions

CHECKPOINT = Path(__file__).parents[2] / "plugins" / "demo_model" / "checkpoint"


def open_demo(**options: Any) -> AbstractContextManager[Any]:
    """The demo model behind an in-process engine on the CPU, which keeps no contexts."""
    from ninfer_core import Engine
    from ninfer_demo_model.source import resolve

    settings = {"devices": ("cpu",), "max_concurrency": 8, "max_pending": 256, **options}
    settings = {"cache_policy": "off", "queue_timeout": None, **settings}
    return Engine.open(resolve(), EngineOptions(**settings))


def conditions() -> dict[str, Any]:
    """Where and when a figure was taken."""
    import torch

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def print_report(report: Mapping[str, Any], passed: bool) -> None:
    """One JSON object on stdout; exit status 1 when the line does not hold."""
    json.dump({**report, "conditions": conditions(), "passed": passed}, sys.stdout, indent=2)
    print()
    sys.exit(0 if passed else 1)
