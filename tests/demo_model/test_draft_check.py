"""At start a drafter that does not fit its target is told by its acceptance."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.errors import InvalidPrompt
from ninfer_core.engine.draft_check import TEXTS, judge_drafts, try_drafts
from ninfer_demo_model.source import resolve
from ninfer_spec_dflash import drafter as dflash
from ninfer_spec_mtp.drafter import MtpDrafter

BACKENDS = {"mtp": ("spec_mtp", 3), "dflash": ("spec_dflash", 7), "dflash2": ("spec_dflash", 7)}


def started(backend: str, caplog) -> tuple[float, list[str]]:
    """Tokens of a round in the trial at start, and the warnings."""
    plugin, drafts = BACKENDS[backend]
    options = EngineOptions(
        devices=("cpu",),
        plugins=(plugin,),
        draft=backend,
        draft_tokens=drafts,
        max_context=160,
        max_concurrency=1,
        prefill_chunk=32,
        warm_up=True,
    )
    log = caplog.at_level(logging.WARNING, "ninfer.engine")
    with log, Engine.open(resolve(), options) as engine:
        told = engine.load_summary().details["draft"]
        assert not engine.stats().rows_by_batch, "the trial is no part of what is counted"
    return told["tokens_per_round"], [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_target_s_own_drafter_raises_no_warning(backend, caplog):
    length, warned = started(backend, caplog)
    assert length > 1.7
    assert warned == []


def test_a_drafter_that_reads_one_layer_off_is_named(monkeypatch, caplog):
    read = dflash.read

    def shifted(component, target):
        config = read(component, target)
        return replace(config, taps=tuple(tap + 1 for tap in config.taps))

    monkeypatch.setattr(dflash, "read", shifted)
    length, warned = started("dflash", caplog)
    assert length < 1.4
    (line,) = warned
    assert f"drafts of dflash gave {length:.2f} tokens" in line
    assert "names the layers that it was trained on" in line


def test_a_drafter_with_moved_weights_is_named(monkeypatch, caplog):
    bind = MtpDrafter.bind

    def moved(self, target):
        bind(self, target)
        weight = self._fc.planes["weight"]
        weight.copy_(torch.roll(weight, len(weight) // 3, 0))

    monkeypatch.setattr(MtpDrafter, "bind", moved)
    length, warned = started("mtp", caplog)
    assert length < 1.2
    assert len(warned) == 1


class Answers:
    """An ingress whose answers have these drafts, place by place."""

    def __init__(self, *timings) -> None:
        self._timings = iter(timings)

    def submit(self, prompt, options):
        drafted, accepted = next(self._timings)
        timings = SimpleNamespace(drafted=drafted, accepted=accepted)
        return SimpleNamespace(result=lambda: SimpleNamespace(timings=timings), close=lambda: None)


def test_the_mean_is_over_rounds_that_verified_drafts():
    assert len(TEXTS) == 3
    # 12 rounds took 8 drafts.
    answers = Answers(((4, 3), (3, 1)), ((6, 2), (2, 1)), ((2,), (1,)))
    assert try_drafts(answers) == pytest.approx(20 / 12)


def test_too_few_rounds_say_nothing(caplog):
    assert try_drafts(Answers(((3,), (0,)), ((2,), (0,)), ((), ()))) is None
    judge_drafts("mtp", None)
    assert not caplog.records


def test_a_model_that_reads_no_messages_is_not_tried():
    def refuse(*_):
        raise InvalidPrompt("there is no chat template")

    assert try_drafts(SimpleNamespace(submit=refuse)) is None
