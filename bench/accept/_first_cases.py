"""A pytest plug-in that keeps the first case of each test function."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: set[str] = set()
    kept = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        if function not in seen:
            seen.add(function)
            kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
