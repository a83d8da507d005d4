"""The grammar backend loads while the engine starts, where that is asked for."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import pytest

from ninfer_core.contract.engine import AvailabilityState, EngineOptions
from ninfer_core.contract.errors import Unsupported
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.engine.facade import Engine
from ninfer_core.engine.remote.served import ServedEngine
from ninfer_core.testing.fake_frontend import FakeFrontend
from ninfer_core.testing.fake_instance import fake_opened
from ninfer_core.testing.fake_remote import FakeStart, open_locally

ASKED = EngineOptions(load_grammars=True)


class Told(Engine):
    """Writes down what it does while it starts."""

    def __init__(self, *arguments, **options):
        self.told = []
        super().__init__(*arguments, **options)

    def _stage(self, text):
        self.told.append(text)


@pytest.fixture
def loaded(monkeypatch):
    """How often a loader of the fake model ran."""
    calls = []
    monkeypatch.setattr(
        FakeFrontend, "grammar_loader", lambda self: lambda: calls.append(1), raising=True
    )
    return calls


def opened():
    return open_locally(FakeStart())


@pytest.mark.parametrize(("wanted", "times"), [(None, 0), (False, 0), (True, 1)])
def test_it_loads_when_asked(loaded, wanted, times):
    with Told(opened, EngineOptions(load_grammars=wanted)) as engine:
        assert loaded == [1] * times
        assert engine.told == ["loading the grammar backend"] * times


def test_there_may_be_nothing_to_load():
    with Told(opened, EngineOptions(load_grammars=True)) as engine:
        assert engine.told == []


def test_a_scoring_engine_needs_none(loaded):
    with Told(lambda: open_locally(FakeStart(scores=True)), _scoring()):
        assert not loaded


def _scoring():
    from ninfer_core.contract.instance import Purpose

    return EngineOptions(purpose=Purpose.CAUSAL_SCORING, load_grammars=True)


@pytest.fixture
def broken(monkeypatch):
    """The library of the fake model does not load."""

    def load():
        raise Unsupported("it does not load", param="response_format")

    monkeypatch.setattr(FakeFrontend, "grammar_loader", lambda self: load)


class Outbox:
    """Takes whatever comes."""

    def __getattr__(self, name):
        return lambda *arguments, **fields: None


def served(factory, told, **fields):
    return ServedEngine(factory, EngineOptions(**fields), Outbox(), told.append)


@pytest.mark.parametrize("named", [False, True])
def test_a_library_that_is_broken_ends_a_start_that_asked_for_it(broken, named):
    closed = []
    start = replace(opened(), grammars_named=named)
    real = start.instance.close
    start.instance.close = lambda: (closed.append(1), real())
    make = partial(served, told=[]) if named else partial(Engine, options=ASKED)
    with pytest.raises(Unsupported, match="does not load"):
        make(lambda: start)
    assert closed == [1]


def test_a_server_starts_without_it_and_says_so(broken, caplog):
    told = []
    with caplog.at_level(logging.WARNING), served(opened, told) as engine:
        assert engine.availability().state is AvailabilityState.READY
        asked = GenerationOptions(max_new_tokens=2)
        assert len(engine.submit(PromptInput(token_ids=[5, 6, 7]), asked).result().token_ids) == 2
    assert told == ["loading the grammar backend"]
    (said,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "requests with a form will be refused" in said
    assert "it does not load" in said


def test_a_process_of_its_own_loads_by_default(loaded):
    told = []
    with served(opened, told):
        assert told == ["loading the grammar backend"]
    with served(opened, told, load_grammars=False):
        assert loaded == [1]


def test_fake_opened_is_what_the_fake_start_opens():
    assert fake_opened().instance.frontend.grammar_loader() is None
