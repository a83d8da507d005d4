"""Log-probabilities of a prompt's own tokens, computed with the chunk that runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.queued.results import ComingLogprobs
from ninfer_qwen3_5.program.work import RowWork

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Lane


class PromptScores:
    """Enqueued where the request asks for them; called, it waits and gives them by position."""

    def __init__(self, model: TextModel, work: RowWork, residual_nH: Tensor, lane: Lane) -> None:
        sequence, start = work.sequence, work.start
        top = sequence.request.rules.prompt_logprobs
        count = min(start + work.executed, sequence.prompt_length - 1) - start
        self._coming: ComingLogprobs | None = None
        if top is None or count <= 0:
            return
        import torch

        self._targets = sequence.tokens(start + 1, start + 1 + count)
        with torch.inference_mode():
            rows = model.ops.prompt_logprobs(
                model.hidden(residual_nH[:count]),
                model.parameters.head,
                model.addressable,
                torch.tensor(self._targets, dtype=torch.int32).to(
                    residual_nH.device, non_blocking=True
                ),
                top,
            )
        self._coming = ComingLogprobs.of(rows, [top] * count, lane)

    def __call__(self) -> tuple[TokenLogprobs, ...]:
        if self._coming is None:
            return ()
        return tuple(entry for row in self._coming.wait(self._targets) for entry in row)
