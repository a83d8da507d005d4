"""Choosing op backends: preference, names, overrides, and every refusal."""

from __future__ import annotations

import subprocess
import sys
from types import MappingProxyType, ModuleType

import pytest

from ninfer_core.hookspecs.devices import DeviceFacts
from ninfer_core.hookspecs.ops import OpBackendEntry
from ninfer_core.hookspecs.records import Verdict
from ninfer_core.ops.backend import OpBackend
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import BACKEND, OPS
from ninfer_core.ops.select import select_ops
from ninfer_core.ops.table import OP_NAMES

CPU = DeviceFacts(kind="cpu")
REFERENCE = OpBackendEntry(
    name="reference", device_kinds=("cpu",), load="ninfer_core.ops.reference:BACKEND"
)


@pytest.fixture
def offer(monkeypatch):
    """Make an installable backend out of a mapping of ops."""

    def build(name, ops, **fields):
        module = ModuleType(f"backend_{name}")
        module.BACKEND = OpBackend(name, MappingProxyType(ops))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        fields = {"device_kinds": ("cpu",)} | fields
        return OpBackendEntry(name=name, load=f"{module.__name__}:BACKEND", **fields)

    return build


def test_the_reference_implements_every_op():
    assert tuple(BACKEND.ops) == OP_NAMES
    assert select_ops(CPU, [REFERENCE]).ops == OPS


def test_the_highest_priority_that_accepts_is_chosen(offer):
    fast = offer("fast", dict(BACKEND.ops) | {"swiglu": max}, priority=5)
    picky = offer("picky", {}, priority=9, accepts=lambda facts: Verdict.no("too old"))
    selection = select_ops(CPU, [REFERENCE, picky, fast])
    assert selection.ops.swiglu is max
    assert {choice.backend for choice in selection.choices} == {"fast"}
    assert [choice.op for choice in selection.choices] == list(OP_NAMES)


def test_a_named_backend_wins(offer):
    fast = offer("fast", {}, priority=5)
    assert select_ops(CPU, [fast, REFERENCE], backend="reference").ops == OPS


def test_an_override_takes_one_op(offer):
    fast = offer("fast", {"swiglu": max}, priority=-1)
    selection = select_ops(CPU, [REFERENCE, fast], overrides={"swiglu": "fast"})
    assert selection.ops.swiglu is max
    assert selection.ops.rms_norm is OPS.rms_norm
    chosen = {choice.op: choice for choice in selection.choices}
    assert chosen["swiglu"].backend == "fast"
    assert "request" in chosen["swiglu"].reason


def test_a_missing_op_is_an_error_that_names_it(offer):
    rest = {name: op for name, op in BACKEND.ops.items() if name != "gdn_fold"}
    with pytest.raises(OpError, match=r"'partial' does not implement 'gdn_fold'"):
        select_ops(CPU, [offer("partial", rest, priority=1), REFERENCE])


def test_unchosen_backends_are_not_loaded():
    broken = OpBackendEntry(name="broken", device_kinds=("cpu",), load="no.such:THING", priority=-1)
    assert select_ops(CPU, [broken, REFERENCE]).ops == OPS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "absent"}, r"no op backend 'absent' \(installed: gpu, other, reference\)"),
        ({"backend": "gpu"}, r"'gpu' cannot serve 'cpu': it runs on cuda"),
        ({"backend": "other"}, r"'other' cannot serve 'cpu': needs luck"),
        ({"overrides": {"swigloo": "reference"}}, r"no op 'swigloo'"),
        ({"overrides": {"swiglu": "gpu"}}, r"it runs on cuda"),
    ],
)
def test_refusals_say_why(offer, options, message):
    gpu = offer("gpu", {}, device_kinds=("cuda",))
    other = offer("other", {}, accepts=lambda facts: Verdict.no("needs luck"))
    with pytest.raises(OpError, match=message):
        select_ops(CPU, [REFERENCE, gpu, other], **options)


def test_no_backend_for_a_device_lists_the_reasons(offer):
    waiting = offer("waiting", {}, device_kinds=("cuda",), unavailable="not in this version")
    with pytest.raises(OpError, match=r"device 'cuda'.*reference: it runs on cpu.*waiting: not in"):
        select_ops(DeviceFacts(kind="cuda"), [waiting, REFERENCE])


@pytest.mark.parametrize("load", ["no.such.module:BACKEND", "sys:nothing", "sys:path"])
def test_a_backend_that_does_not_load_is_named(load):
    entry = OpBackendEntry(name="odd", device_kinds=("cpu",), load=load)
    with pytest.raises(OpError, match="'odd'"):
        select_ops(CPU, [entry])


def test_contracts_and_table_import_no_tensor_library():
    names = ["backend", "contracts.attention", "errors", "rope", "select", "table"]
    imports = ", ".join(f"ninfer_core.ops.{name}" for name in names)
    code = f"import sys, {imports}; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
