"""The pytest plug-in ``ninfer``: one option and two fixtures; imports no tensor library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ninfer_core.plugins import PluginHost


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--ninfer-plugin``, which may be repeated."""
    parser.getgroup("ninfer").addoption(
        "--ninfer-plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="check this installed plug-in with ninfer_core.testing.conformance",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each named plug-in to the tests that take ``ninfer_plugin``."""
    if "ninfer_plugin" in metafunc.fixturenames:
        named = getattr(metafunc.cls, "plugin", None)
        names = [named] if named else metafunc.config.getoption("--ninfer-plugin")
        if not names:
            raise pytest.UsageError("name the plug-in to check with --ninfer-plugin NAME")
        metafunc.parametrize("ninfer_plugin", names, scope="session")


@pytest.fixture(scope="session")
def ninfer_host() -> PluginHost:
    """All installed plug-ins, freshly loaded, without what the environment asks for."""
    from ninfer_core.plugins import Selection, load_plugins

    return load_plugins(Selection())
