"""When the grammar library is loaded: by a server before it is ready, else at the first form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer_core import RemoteEngine
from ninfer_core.contract.engine import EngineOptions

SCRIPT = """
import json, sys
from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput, ResponseFormat
loaded = []
with Engine.open("demo", EngineOptions(devices=("cpu",), max_context=256)) as engine:
    for form in ("text", "json_object"):
        wanted = PromptInput(
            messages=[dict(role="user", content="hi")], response_format=ResponseFormat(kind=form)
        )
        engine.submit(wanted, GenerationOptions(max_new_tokens=2)).result()
        loaded.append("xgrammar" in sys.modules)
print(json.dumps(loaded))
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="tells what a process has loaded")
@pytest.mark.parametrize("wanted", [None, False])
def test_a_process_of_its_own_loads_it_before_it_is_ready(wanted):
    told = []
    options = EngineOptions(devices=("cpu",), max_context=256, load_grammars=wanted)
    with RemoteEngine.open("demo", options, progress=told.append) as engine:
        loaded = "xgrammar" in Path(f"/proc/{engine.pid}/maps").read_text()
    assert loaded == ("loading the grammar backend" in told) == (wanted is None)


BROKEN = """
import json, sys
sys.modules["xgrammar"] = None  # an import of it fails from now on
from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.errors import NinferError, Unsupported
from ninfer_core.contract.requests import GenerationOptions, PromptInput, ResponseFormat, ToolChoice
tool = dict(type="function", function=dict(name="set", parameters=dict(type="object")))
strict = dict(type="function", function=dict(tool["function"], strict=True))
FORMS = [
    dict(),
    dict(tools=(tool,)),
    dict(response_format=ResponseFormat(kind="json_object")),
    dict(tools=(strict,)),
    dict(tools=(tool,), tool_choice=ToolChoice(mode="required")),
]
told = []
with Engine.open("demo", EngineOptions(devices=("cpu",), max_context=512)) as engine:
    for form in FORMS:
        wanted = PromptInput(messages=[dict(role="user", content="hi")], **form)
        try:
            engine.submit(wanted, GenerationOptions(max_new_tokens=2)).result()
            told.append("")
        except Unsupported as error:
            told.append(f"{error.param}: {error.message}")
for named in (dict(plugins=("grammar_xgrammar",)), dict(grammar_backend="xgrammar")):
    options = EngineOptions(devices=("cpu",), max_context=256, load_grammars=None, **named)
    from ninfer_core.instance import instance_factory
    opened = instance_factory("demo", options)()
    told.append(opened.grammars_named)
    opened.instance.close()
print(json.dumps(told))
"""


def test_a_broken_library_is_the_trouble_of_those_who_need_it():
    done = subprocess.run([sys.executable, "-c", BROKEN], stdout=subprocess.PIPE, check=True)
    free, offered, *refused, first, second = json.loads(done.stdout)
    assert (free, offered) == ("", "")
    fields = ["response_format", "tools[0].function.parameters", "tools[0].function.parameters"]
    assert [text.partition(": ")[0] for text in refused] == fields
    assert all("xgrammar does not load" in text for text in refused)
    assert first
    assert second


def test_without_a_form_it_is_never_loaded():
    done = subprocess.run([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == [False, True]
