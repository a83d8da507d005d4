"""Faults that people meet in comparable engines, and the behaviour that is right here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ninfer_core import Engine, NinferError
from ninfer_core.contract.engine import AvailabilityState, EngineOptions
from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

CHECKPOINT = Path(__file__).parents[2] / "plugins" / "demo_model" / "checkpoint"
CPU = EngineOptions(devices=("cpu",), max_context=512)
QUESTION = PromptInput(messages=[{"role": "user", "content": "What is 17 + 25?"}])


def test_an_unknown_layer_type_reaches_the_caller_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, source)
    config = json.loads((source / "config.json").read_text())
    config["layer_types"][2] = "chunked_attention"
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(NinferError, match="chunked_attention"):
        Engine.open(source, CPU)
    assert not list((tmp_path / "cache").rglob("*.ninfer*"))


def test_a_failing_worker_ends_every_waiter(monkeypatch) -> None:
    from ninfer_qwen3_5.program.program import TextProgram

    def broken(self, rows, *, ahead_of=None):
        raise RuntimeError("the device fell off")

    monkeypatch.setattr(TextProgram, "launch_decode", broken)
    before = set(threading.enumerate())
    with Engine.open("demo", CPU) as engine:
        handles = [engine.submit(QUESTION) for _ in range(3)]
        for handle in handles:
            with pytest.raises((EngineFailure, RequestError), match="the device fell off"):
                handle.result(timeout=60)
        assert engine.availability().state is AvailabilityState.FAILED
        with pytest.raises(RequestError):
            engine.submit(QUESTION)
    assert set(threading.enumerate()) <= before


def test_a_plugin_of_the_parent_is_found_by_a_child_process_or_named() -> None:
    """The child loads what the parent resolved: by entry point, never by inherited memory."""
    program = (
        "import pickle, sys\n"
        "from ninfer_core.plugins import Selection, load_plugins\n"
        "host = load_plugins(Selection(pins=pickle.loads(sys.stdin.buffer.read())))\n"
        "print(' '.join(pin.name for pin in host.pins()))\n"
    )
    import pickle

    from ninfer_core.plugins import load_plugins

    pins = load_plugins().pins()

    def child(given: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-c", program],
            input=pickle.dumps(given),
            capture_output=True,
            check=False,
            timeout=60,
        )

    found = child(pins)
    assert found.stdout.decode().split() == [pin.name for pin in pins]
    import dataclasses

    missing = child((*pins, dataclasses.replace(pins[0], name="from_a_script")))
    assert missing.returncode != 0
    assert b"from_a_script" in missing.stderr


def test_greedy_output_does_not_change_while_other_requests_run(demo_engine) -> None:
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=20, ignore_eos=True, logprobs=3
    )
    alone = [demo_engine.submit(QUESTION, options).result(timeout=60) for _ in range(2)]
    others = [
        demo_engine.submit(
            PromptInput(messages=[{"role": "user", "content": f"Count to {n}."}]),
            GenerationOptions(max_new_tokens=30, sampling=SamplingParams(seed=n)),
        )
        for n in range(3, 10)
    ]
    crowded = [demo_engine.submit(QUESTION, options).result(timeout=60) for _ in range(2)]
    for handle in others:
        handle.result(timeout=60)
    evidence = {(r.token_ids, r.logprobs) for r in (*alone, *crowded)}
    assert len(evidence) == 1
