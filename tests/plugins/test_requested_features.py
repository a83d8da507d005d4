"""Features that an engine is asked for: each is refused by name before anything is opened."""

from __future__ import annotations

import pytest

import ninfer_core.builtin
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.instance import instance_factory
from ninfer_core.plugins import PluginError, PluginNotFound, PluginUnavailable, host_of


def refusal(modules, **options):
    """The error of opening a path that is never looked at."""
    host = host_of({"builtin": ninfer_core.builtin, **modules})
    with pytest.raises(PluginError) as caught:
        instance_factory("/no/such.ninfer", EngineOptions(**options), host)
    return caught.value


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"draft": "mtp"}, "draft backend is named 'mtp'"),
        ({"cache_policy": "lru"}, "cache policy is named 'lru'"),
        ({"kv_format": "fp4"}, "KV format is named 'fp4'"),
        ({"grammar_backend": "xgrammar"}, "grammar backend is named 'xgrammar'"),
        ({"vision": True}, "vision was asked for, and no installed plug-in reads images"),
    ],
)
def test_what_nobody_offers(options, named):
    error = refusal({}, **options)
    assert isinstance(error, PluginNotFound)
    assert named in str(error)
    assert error.exit_code == 2


def test_what_is_offered_and_cannot_run_yet():
    import ninfer_vision.plugin

    error = refusal({"vision": ninfer_vision.plugin}, vision=True)
    assert isinstance(error, PluginUnavailable)
    assert "does not read media yet" in str(error)
