"""Seeded bugs of the cache: each breaks a rule on purpose, and the cache machine must notice."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ninfer_core.contract.checkpoints import RestoreWork
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.engine.captures import CaptureDesk
from ninfer_core.engine.catalogue import Catalogue
from ninfer_core.engine.contexts import ContextDriver
from ninfer_core.engine.endings import Endings
from ninfer_core.engine.prefix_index import PrefixIndex
from ninfer_core.engine.reclaiming import Reclaimer
from ninfer_core.engine.resource_manager import ResourceManager
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.states import CHUNKED, RUNNABLE
from ninfer_core.engine.token_path import TokenPath
from ninfer_core.testing.fake_checkpoints import FakeCheckpoints
from ninfer_core.testing.fake_program import FakeProgram
from ninfer_core.testing.fake_sharing import SharedPages

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
MUTANTS: dict[str, tuple[Plant, str]] = {}


def mutant(symptom: str) -> Callable[[Plant], Plant]:
    """Register a bug and the words of the check that must notice it."""

    def register(plant: Plant) -> Plant:
        MUTANTS[plant.__name__] = plant, symptom
        return plant

    return register


@mutant("the catalogue is not what")
def a_victim_stays_in_the_catalogue(patch: Patch) -> None:
    patch.setattr(Reclaimer, "give_up", lambda self, one: self._program.drop(one.ref, one.action))


@mutant("the catalogue is not what")
def a_point_taken_over_stays_in_the_catalogue(patch: Patch) -> None:
    patch.setattr(ResourceManager, "settled", lambda self, refs=(): self.reclaimer.changed())


@mutant("facts of the catalogue are out of date")
def a_demotion_is_not_taken_in(patch: Patch) -> None:
    patch.setattr(Reclaimer, "demoted", lambda self, result: None)


@mutant("the catalogue is not what")
def a_captured_point_is_not_taken_in(patch: Patch) -> None:
    patch.setattr(ResourceManager, "captured", lambda self, record, point, result: None)


@mutant("the index is not what")
def an_entry_stays_in_the_index(patch: Patch) -> None:
    patch.setattr(PrefixIndex, "remove", lambda self, item: None)


@mutant("a capture left its request free|a permit that it may not have")
def a_capture_without_its_gate(patch: Patch) -> None:
    real = ContextDriver.capture

    def capture(self, record, plan):
        real(self, record, plan)
        record.capture = None

    patch.setattr(ContextDriver, "capture", capture)


@mutant("a permit that it may not have|waits for a capture that nobody makes")
def a_gate_that_the_scheduler_overlooks(patch: Patch) -> None:
    def permit_order(self):
        return [record for record in self.residents if record.state in RUNNABLE]

    def chunk_order(self):
        return [record for record in self._rotation if record.state in CHUNKED]

    patch.setattr(Scheduler, "permit_order", permit_order)
    patch.setattr(Scheduler, "chunk_order", chunk_order)


@mutant("waits for a capture that nobody makes|none can go on")
def a_failed_capture_keeps_its_gate(patch: Patch) -> None:
    real = ContextDriver._undone

    def undone(self, record, result, source):
        if record.capture is None:
            real(self, record, result, source)

    patch.setattr(ContextDriver, "_undone", undone)


@mutant("a second context transaction")
def a_capture_beside_another_transaction(patch: Patch) -> None:
    def begin(self):
        while self.waiting:
            self._capture(self.waiting.pop(0))

    patch.setattr(CaptureDesk, "begin", begin)


@mutant("while a bind reads it")
def a_source_without_its_lease(patch: Patch) -> None:
    real = ResourceManager.lease

    def lease(self, source):
        real(self, source)
        self.reclaimer.leased = None

    patch.setattr(ResourceManager, "lease", lease)


@mutant("takes no part reused something|reused from nobody")
def a_request_out_of_the_cache_reads_it(patch: Patch) -> None:
    patch.setattr(ResourceManager, "_takes_part", lambda self, record: True)


@mutant("ended in the middle of something")
def a_cancel_ends_a_request_in_its_capture(patch: Patch) -> None:
    real = Endings.stop

    def stop(self, record, ending):
        record.capture = None
        real(self, record, ending)

    patch.setattr(Endings, "stop", stop)


@mutant("reused from nobody")
def salts_and_templates_are_ignored(patch: Patch) -> None:
    real = TokenPath.__init__

    def init(self, namespace, tokens, media=()):
        real(self, ("", None), tokens, media)

    def restore_work(self, ref, prepared):
        frontier = self.contexts.kept.checkpoint(ref).facts.frontier
        return RestoreWork(bytes=0, operations=1, tokens=prepared.length - frontier)

    patch.setattr(TokenPath, "__init__", init)
    patch.setattr(FakeProgram, "restore_work", restore_work)


@mutant("the model says|was accepted that ran on")
def the_state_of_another_frontier(patch: Patch) -> None:
    real = FakeCheckpoints._state
    patch.setattr(
        FakeCheckpoints, "_state", lambda self, sequence, at: real(self, sequence, max(0, at - 1))
    )


@mutant("users of pages|let go twice|held by the dead|are accounted for")
def shared_pages_let_go_too_early(patch: Patch) -> None:
    patch.setattr(SharedPages, "join", lambda self, chain: chain)


@mutant("reused without a point")
def the_point_is_not_reported(patch: Patch) -> None:
    patch.setattr(ResourceManager, "admitted", lambda self, record, source: None)


@mutant("KeyError|the index is not what")
def the_catalogue_forgets_without_the_index(patch: Patch) -> None:
    def discard(self, ref, *, given_up=False):
        self._entries.pop(ref, None)

    patch.setattr(Catalogue, "discard", discard)


def drive() -> None:
    path = Path(__file__).with_name("test_cache_machine.py")
    spec = importlib.util.spec_from_file_location("cache_machine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    short = settings(module.SHORT, phases=[Phase.generate])
    run_state_machine_as_test(module.CacheMachine, settings=short)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_seeded_bug_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, symptom = MUTANTS[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, EngineFailure), match=symptom):
        drive()
