"""Building the op table from chosen backends, with the reason of every choice.

Which backend serves a device is decided by ``ninfer_core.plugins.choose``; here its ops are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_core.ops.backend import OpBackend, Prepare
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.table import OP_NAMES, Ops


@dataclass(frozen=True, slots=True)
class OpChoice:
    """Which backend computes an op, and why that one."""

    op: str
    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class OpSelection:
    """The table and, in the table's order, the choices behind it. ``prepare`` is that of the
    backend, None where it has none or another one computes some op: during one backend's rehearsal
    the other's ops would compute on what was never written."""

    ops: Ops
    choices: tuple[OpChoice, ...]
    prepare: Prepare | None = None


def select_ops(
    backend: OpBackend,
    reason: str,
    *,
    overrides: Mapping[str, OpBackend] | None = None,
) -> OpSelection:
    """The table of ``backend``, except the ops that ``overrides`` gives to another one by name.

    ``reason`` says why ``backend`` was chosen. Raises OpError when an override names no op, or when
    a backend lacks an op that it is to compute: nothing falls back to another backend.
    """
    replaced = dict(overrides or {})
    for name in replaced:
        if name not in OP_NAMES:
            raise OpError(f"there is no op {name!r}", hint=f"ops are {', '.join(OP_NAMES)}")
    serving = {name: replaced.get(name, backend) for name in OP_NAMES}
    table: dict[str, Any] = {name: _implementation(serving[name], name) for name in OP_NAMES}
    choices = tuple(
        OpChoice(name, serving[name].name, "override" if name in replaced else reason)
        for name in OP_NAMES
    )
    alone = all(server is backend for server in serving.values())
    return OpSelection(Ops(**table), choices, backend.prepare if alone else None)


def _implementation(backend: OpBackend, op: str) -> Callable[..., Any]:
    try:
        return backend.ops[op]
    except KeyError:
        raise OpError(
            f"op backend {backend.name!r} does not implement {op!r}",
            hint="choose another backend for this op",
        ) from None
