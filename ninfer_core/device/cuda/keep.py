"""Objects whose destructors must not run when the interpreter ends.

By then the libraries under them may be gone, or the GPU may be lost; either can end the process
with a signal in place of its exit code. The process's end gives back what they hold.
"""

from __future__ import annotations

import ctypes
import gc

import torch


def keep(thing: object) -> None:
    """Hold ``thing`` until :func:`let_go`, beyond the interpreter's end where that never comes."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def let_go(thing: object) -> None:
    """Undo one :func:`keep`."""
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))


def keep_tensors() -> None:
    """Hold every tensor there is. For a lost GPU: torch asks it about captures when a tensor of its
    memory, or of pinned memory, goes, and ends the process by the answer. Which tensors those are
    cannot be asked any more."""
    for thing in gc.get_objects():
        # type(), since objects may answer for their class, and do something for that.
        if issubclass(type(thing), torch.Tensor):
            keep(thing)
