"""The demo model in a process of its own says what it says in this one."""

from __future__ import annotations

import json
import subprocess
import sys

from ninfer_core import Engine, RemoteEngine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

OPTIONS = EngineOptions(devices=("cpu",), max_concurrency=8, max_context=256, cache_policy="off")
QUESTIONS = ("What is 17 + 25?", "Name a colour.", "Count to five.", "Who are you?")


def asked(engine):
    """What eight conversations at once are answered, with their log-probabilities."""
    handles = [
        engine.submit(
            PromptInput(
                messages=[{"role": "user", "content": QUESTIONS[row % 4]}],
                chat=ChatOptions(thinking=row % 2 == 0),
            ),
            GenerationOptions(
                sampling=SamplingParams(temperature=float(row > 3), seed=row),
                max_new_tokens=12,
                logprobs=3,
                prompt_logprobs=1 if row == 7 else None,
            ),
        )
        for row in range(8)
    ]
    streams = [list(handle)[1:-1] for handle in handles]
    results = [handle.result() for handle in handles]
    facts = ("text", "reasoning", "token_ids", "logprobs", "prompt_logprobs", "finish_reason")
    return [
        ([(d.channel, d.text, d.token_ids, d.logprobs) for d in deltas],
         [getattr(result, name) for name in facts])
        for deltas, result in zip(streams, results, strict=True)
    ]  # fmt: skip


def test_eight_streams_are_equal_to_those_in_process():
    with RemoteEngine.open("demo", OPTIONS) as remote:
        there = asked(remote)
        summary = remote.load_summary()
        pieces = remote.token_bytes(remote.tokenize("héllo"))
    with Engine.open("demo", OPTIONS) as engine:
        assert there == asked(engine)
        assert summary.details == engine.load_summary().details
        assert pieces == engine.token_bytes(engine.tokenize("héllo"))


def test_the_serving_process_needs_no_tensor_library():
    script = """
import json, sys
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import PromptInput
from ninfer_core.plugins import load_plugins
from ninfer_core.text_side import remote_plan
host = load_plugins()
side = remote_plan("demo", EngineOptions(), host).text_side()
side.frontend.prepare(PromptInput(messages=[dict(role="user", content="hi")]))
print(json.dumps([name for name in ("torch", "triton", "cupy") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == []
