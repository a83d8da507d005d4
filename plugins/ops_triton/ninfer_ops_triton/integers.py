"""Memory for the integers that ops give: token ids, slots, positions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from torch import Tensor


class _Thread(local):
    zeros = False


_thread = _Thread()


def integers(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """For a kernel to write; what it does not write is undefined, but inside :func:`zeros`."""
    make = torch.zeros if _thread.zeros else torch.empty
    return make(shape, dtype=dtype, device=device)


@contextmanager
def zeros() -> Iterator[None]:
    """Inside, for this thread, what is not written reads as zeros. torch's own code runs in a
    rehearsal, too: where it indexes by tokens that no kernel wrote, what the memory held before
    would cost the process its device."""
    before, _thread.zeros = _thread.zeros, True
    try:
        yield
    finally:
        _thread.zeros = before
