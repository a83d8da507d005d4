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


def test_without_a_form_it_is_never_loaded():
    done = subprocess.run([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == [False, True]
