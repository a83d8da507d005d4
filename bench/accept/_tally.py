"""A pytest plug-in that writes each outcome to $TALLY at once, so that a run cut short counts too,
and with a failure what it says; with $FIRST_CASES it keeps the first case of each test function."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

IN_A_WORKER = "PYTEST_XDIST_WORKER" in os.environ
"""There the process that started it hears of every outcome, too."""


STDERR = 3000
"""First characters of it that are kept: there a GPU names the line of a check that failed."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not IN_A_WORKER and (report.when == "call" or report.outcome != "passed"):
        entry = {"id": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
        if report.failed:
            entry |= {"error": report.longreprtext, "stderr": report.capstderr[:STDERR]}
        with Path(os.environ["TALLY"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "FIRST_CASES" not in os.environ:
        return
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(item.nodeid.partition("[")[0], item)
    kept = list(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
