"""Building the op table: completeness, overrides, refusals, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ninfer_core.ops.backend import OpBackend
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import BACKEND, OPS
from ninfer_core.ops.select import select_ops
from ninfer_core.ops.table import OP_NAMES


def test_the_reference_implements_every_op():
    assert tuple(BACKEND.ops) == OP_NAMES
    selection = select_ops(BACKEND, "the only one")
    assert selection.ops == OPS
    assert [choice.op for choice in selection.choices] == list(OP_NAMES)
    assert {(c.backend, c.reason) for c in selection.choices} == {("reference", "the only one")}


def test_an_override_takes_one_op():
    other = OpBackend("other", {"swiglu": max})
    selection = select_ops(BACKEND, "first", overrides={"swiglu": other})
    assert selection.ops.swiglu is max
    assert selection.ops.rms_norm is OPS.rms_norm
    chosen = {choice.op: (choice.backend, choice.reason) for choice in selection.choices}
    assert chosen["swiglu"] == ("other", "override")
    assert chosen["rms_norm"] == ("reference", "first")


def test_a_backend_prepares_only_where_no_other_computes():
    def prepare(rehearsal):
        rehearsal()

    backend = OpBackend("first", BACKEND.ops, prepare)
    assert select_ops(backend, "alone").prepare is prepare
    assert select_ops(BACKEND, "alone").prepare is None
    assert select_ops(backend, "mixed", overrides={"swiglu": BACKEND}).prepare is None


def test_a_missing_op_is_an_error_that_names_it_and_the_backend():
    rest = {name: op for name, op in BACKEND.ops.items() if name != "gdn_fold"}
    with pytest.raises(OpError, match=r"'partial' does not implement 'gdn_fold'"):
        select_ops(OpBackend("partial", rest), "first")


def test_an_override_of_a_missing_op_is_not_replaced_by_the_default():
    with pytest.raises(OpError, match=r"'empty' does not implement 'swiglu'"):
        select_ops(BACKEND, "first", overrides={"swiglu": OpBackend("empty", {})})


def test_an_override_must_name_an_op():
    with pytest.raises(OpError, match=r"no op 'swigloo'.*swiglu"):
        select_ops(BACKEND, "first", overrides={"swigloo": BACKEND})


def test_contracts_and_table_import_no_tensor_library():
    names = ["backend", "contracts.attention", "errors", "rope", "select", "table"]
    imports = ", ".join(f"ninfer_core.ops.{name}" for name in names)
    code = f"import sys, {imports}; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
