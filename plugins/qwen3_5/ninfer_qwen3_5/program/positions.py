"""Rotary positions of a stretch of a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_qwen3_5.program.sequence import Sequence

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor


def rotary_positions(sequence: Sequence, start: int, stop: int) -> Tensor:
    """i32[3, n] on the host: see :func:`write_positions`."""
    import numpy as np
    import torch

    places = np.empty((3, stop - start), np.int32)
    write_positions(sequence, start, stop, places)
    return torch.from_numpy(places)


def write_positions(
    sequence: Sequence, start: int, stop: int, places: npt.NDArray[np.int32]
) -> None:
    """Fill ``places`` [3, n]: the prompt's own positions, then logical ones plus its delta."""
    import numpy as np

    prepared, inside = sequence.request.prepared, 0
    if prepared.positions is not None and start < prepared.length:
        own = prepared.positions[:, start:stop]
        inside = own.shape[1]
        places[:, :inside] = own
    delta = prepared.rope_delta
    places[:, inside:] = np.arange(start + inside + delta, stop + delta, dtype=np.int32)
