"""What MODEL means."""

from __future__ import annotations

import pytest

from ninfer_core import hookimpl
from ninfer_core.hookspecs import ModelSourceEntry
from ninfer_core.models import ModelNotFound, resolve_model
from ninfer_core.plugins import PluginLoadError, host_of


class Sources:
    @hookimpl
    def ninfer_model_sources(self):
        for name in ("demo", "gone"):
            yield ModelSourceEntry(name=name, resolve=f"{__name__}:{name}")
        yield ModelSourceEntry(name="broken", resolve="no_such_module:x")
        yield ModelSourceEntry(name="shelf", resolve=f"{__name__}:shelf", argument="TITLE")


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Sources ``demo`` (a file), ``gone`` (a missing one) and ``broken`` (cannot be imported)."""
    from ninfer_core.plugins import host as host_module

    (tmp_path / "demo.ninfer").write_bytes(b"x")
    objects = {f"{__name__}:{n}": lambda n=n: tmp_path / f"{n}.ninfer" for n in ("demo", "gone")}
    objects[f"{__name__}:shelf"] = lambda title: tmp_path / f"{title}.ninfer"
    real = host_module.load_object
    monkeypatch.setattr(
        host_module, "load_object", lambda spec: objects[spec] if spec in objects else real(spec)
    )
    monkeypatch.chdir(tmp_path)
    return host_of({"sources": Sources()})


def test_nothing_means_demo_and_says_so(host, tmp_path):
    found = resolve_model(None, host, {})
    assert found.path == tmp_path / "demo.ninfer"
    assert (found.kind, found.source) == ("ninfer", "demo")
    assert found.note == "MODEL not given and $NINFER_MODEL not set: using 'demo'"


def test_environment_comes_before_demo(host, tmp_path):
    (tmp_path / "mine.ninfer").write_bytes(b"x")
    found = resolve_model(None, host, {"NINFER_MODEL": "mine.ninfer"})
    assert (found.path.name, found.source) == ("mine.ninfer", None)
    assert found.note == "MODEL not given: using $NINFER_MODEL=mine.ninfer"


def test_argument_comes_before_environment(host):
    found = resolve_model("demo", host, {"NINFER_MODEL": "elsewhere"})
    assert (found.source, found.note) == ("demo", None)


def test_a_path_of_a_sources_name_needs_its_separator(host, tmp_path):
    (tmp_path / "demo").write_bytes(b"mine")
    assert resolve_model("demo", host, {}).path.name == "demo.ninfer"
    assert resolve_model("./demo", host, {}).path.read_bytes() == b"mine"


def test_a_source_of_several_models_takes_a_choice(host, tmp_path):
    (tmp_path / "big:red.ninfer").write_bytes(b"x")
    found = resolve_model("shelf:big:red", host, {})
    assert found.path == tmp_path / "big:red.ninfer"
    assert found.source == "shelf:big:red"


@pytest.mark.parametrize("model", ["shelf", "shelf:", "demo:x"])
def test_a_choice_where_there_is_none_and_none_where_there_is_one(host, model):
    with pytest.raises(ModelNotFound, match=f"{model!r} is neither.*shelf:TITLE"):
        resolve_model(model, host, {})


def test_hugging_face_directory(host, tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    assert resolve_model(tmp_path / "hf", host, {}).kind == "hf"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("", "MODEL is empty"),
        ("nosuch", "'nosuch' is neither a file, a directory nor a model source.*demo"),
        ("./nosuch", "neither"),
        ("gone", "gone.ninfer does not exist"),
        (".", "without config.json"),
    ],
)
def test_bad_model(host, model, said):
    with pytest.raises(ModelNotFound, match=said):
        resolve_model(model, host, {})


def test_source_that_cannot_be_imported(host):
    with pytest.raises(PluginLoadError, match="model source broken of plug-in sources"):
        resolve_model("broken", host, {})
