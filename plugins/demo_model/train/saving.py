"""Training state on disk, in files small enough to be moved one by one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

_HALVES = 2


def save_state(out: Path, model: Any, optimizer: Any, progress: dict[str, Any]) -> None:
    """Write weights (fp32, two files) and optimizer state; each file appears whole or not."""
    state = {name: value.detach().float().cpu() for name, value in model.state_dict().items()}
    state.pop("lm_head.weight", None)
    names = sorted(state)
    for half in range(_HALVES):
        put(
            out / f"weights-{half}.pt", {name: state[name].clone() for name in names[half::_HALVES]}
        )
    put(out / "optimizer.pt", {"optimizer": optimizer.state(), "progress": progress})


def restore(model: Any, state: dict[str, torch.Tensor]) -> None:
    """Load a state that leaves out the tied head. Raises ValueError where a name differs."""
    missing, surplus = model.load_state_dict(state, strict=False)
    if surplus or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"the saved weights do not fit: missing {missing}, surplus {surplus}")


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that `save_state` wrote."""
    state: dict[str, torch.Tensor] = {}
    for half in range(_HALVES):
        state |= torch.load(folder / f"weights-{half}.pt", map_location="cpu")
    return state


def load_optimizer(folder: Path) -> dict[str, Any]:
    """The optimizer state and progress that `save_state` wrote."""
    state: dict[str, Any] = torch.load(folder / "optimizer.pt", map_location="cpu")
    return state


def put(path: Path, value: Any) -> None:
    """Write `value` and publish it under `path` in one step."""
    partial = path.with_suffix(".partial")
    torch.save(value, partial)
    os.replace(partial, path)
