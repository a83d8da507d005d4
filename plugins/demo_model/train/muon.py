"""Muon: momentum made orthogonal, for the matrices; Adam for everything else.

Formula: Jordan et al. 2024 (Newton-Schulz iteration of fifth order), with the update scaled to
the root mean square of Adam's as in Liu et al. 2025 (0.2 * sqrt(larger side)).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


class Muon:
    """Same-shaped matrices are stacked and updated together."""

    def __init__(self, matrices: list[nn.Parameter], decay: float, momentum: float = 0.95) -> None:
        self._decay, self._momentum = decay, momentum
        shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            shapes[matrix.shape].append(matrix)
        self._groups = list(shapes.values())
        self._buffers = [torch.zeros_like(torch.stack(list(group))) for group in self._groups]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update from the parameters' gradients."""
        for group, buffer in zip(self._groups, self._buffers, strict=True):
            grads = torch.stack([_grad(matrix) for matrix in group])
            buffer.lerp_(grads, 1 - self._momentum)
            update = orthogonal(grads.lerp(buffer, self._momentum))
            size = 0.2 * max(update.shape[-2:]) ** 0.5
            for matrix, change in zip(group, update.float().unbind(), strict=True):
                matrix.mul_(1 - lr * self._decay).sub_(change, alpha=lr * size)

    def state(self) -> list[Tensor]:
        """The momentum in bf16, which halves what a checkpoint holds."""
        return [buffer.bfloat16() for buffer in self._buffers]

    def load(self, state: list[Tensor]) -> None:
        """Take back what `state` gave."""
        for buffer, saved in zip(self._buffers, state, strict=True):
            buffer.copy_(saved)


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, approximately. matrices [N, R, C]."""
    a, b, c = _COEFFICIENTS
    x: Tensor = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Optimizer:
    """Muon for the matrices of the layers, Adam for embeddings, norms, convolutions, decays."""

    def __init__(self, module: nn.Module, lr: float, decay: float = 0.1) -> None:
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        is_matrix = {n: p.dim() == 2 and not _is_table(n) for n, p in named}
        self.muon = Muon([p for n, p in named if is_matrix[n]], decay)
        others = [p for n, p in named if not is_matrix[n]]
        fused = others[0].is_cuda
        self.adam = torch.optim.AdamW(
            others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=fused
        )
        self._parameters, self._lr = [p for _, p in named], lr

    def step(self, factor: float) -> None:
        """Clip, update at `factor` times the peak rate, and clear the gradients."""
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self._lr * factor
        self.adam.step()
        self.muon.step(self._lr * factor)
        for parameter in self._parameters:
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        """What resuming needs."""
        return {"muon": self.muon.state(), "adam": self.adam.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        self.muon.load(state["muon"])
        self.adam.load_state_dict(state["adam"])


def _is_table(name: str) -> bool:
    return "embed" in name or "codebook" in name


def _grad(matrix: nn.Parameter) -> Tensor:
    return torch.zeros_like(matrix) if matrix.grad is None else matrix.grad
