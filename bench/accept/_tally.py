"""A pytest plug-in that writes each outcome to $TALLY at once, so that a run cut short counts too,
and with a failure what it says; with $FIRST_CASES it keeps the first case of each test function."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

STDERR = 3000
"""First characters of it that are kept: there a GPU names the line of a check that failed."""

_workers: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    """In a worker nothing is written: the process that started it hears of every outcome, too. Its
    environment says nothing, which a run that one started has as well."""
    if hasattr(config, "workerinput"):
        _workers.append(config)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not _workers and (report.when == "call" or report.outcome != "passed"):
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
