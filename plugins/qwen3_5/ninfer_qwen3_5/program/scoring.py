"""Offline scoring of text: one temporary sequence per window, no lanes, no cache."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import ContextLengthExceeded, InvalidRequest
from ninfer_core.ops.contracts.values import PagedRows
from ninfer_qwen3_5.model.routes import ChunkRoute
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Device


class TextScoring:
    """Contract ``ScoringProgram``. Windows run by chunks of ``chunk`` tokens on state slot 0."""

    def __init__(
        self,
        model: TextModel,
        state: ModelState,
        max_context: int,
        chunk: int,
        pages: int,
        device: Device,
        held: ExitStack | None = None,
    ) -> None:
        import torch

        self._model = model
        self._state = state
        self._max_context = max_context
        self._chunk = chunk
        self._place = device.torch_device
        self._held = held or ExitStack()
        pages_in_order = torch.arange(pages, dtype=torch.int32, device=self._place)
        self._tables = pages_in_order.unsqueeze(0)

    def score(self, token_ids: Rows[int], first_target: int) -> list[float]:
        """log p of ``token_ids[i]`` given all before it, for every ``i >= first_target >= 1``.

        Raises InvalidRequest for a target or token out of range, ContextLengthExceeded for a
        window longer than the context.
        """
        import torch

        self._check(token_ids, first_target)
        self._state.clear_slot(0)
        ids = torch.tensor(list(token_ids), dtype=torch.int32, device=self._place)
        scores: list[float] = []
        with torch.inference_mode():
            for start in range(0, len(token_ids) - 1, self._chunk):
                stop = min(start + self._chunk, len(token_ids) - 1)
                residual = self._run(ids, start, stop)
                skip = max(0, first_target - 1 - start)
                if skip < stop - start:
                    scores += self._log_probs(residual[skip:], ids[start + skip + 1 : stop + 1])
        return scores

    def close(self) -> None:
        """Leave the lane, if one was entered. Idempotent."""
        self._held.close()

    def _check(self, token_ids: Rows[int], first_target: int) -> None:
        if not 1 <= first_target < len(token_ids):
            raise InvalidRequest(
                f"first_target is {first_target}; it must lie between 1 and {len(token_ids) - 1}",
                param="first_target",
            )
        if len(token_ids) > self._max_context:
            raise ContextLengthExceeded(len(token_ids), self._max_context)
        if not all(0 <= token < self._model.addressable for token in token_ids):
            raise InvalidRequest(
                f"token ids must lie between 0 and {self._model.addressable - 1}",
                param="token_ids",
            )

    def _run(self, ids: Tensor, start: int, stop: int) -> Tensor:
        import torch

        zero = torch.zeros(1, dtype=torch.int32, device=self._place)
        rows = PagedRows(self._tables, zero, zero + start, zero + (stop - start), stop - start)
        positions = torch.arange(start, stop, dtype=torch.int32, device=self._place)
        slot = torch.zeros(1, dtype=torch.int64, device=self._place)
        place = self._model.place(rows, positions.expand(3, -1))
        route = ChunkRoute(self._model.ops, place, slot)
        return self._model.forward(ids[start:stop], route, self._state).residual

    def _log_probs(self, residual: Tensor, targets: Tensor) -> list[float]:
        hidden = self._model.hidden(residual)
        rows = self._model.ops.prompt_logprobs(
            hidden, self._model.parameters.head, self._model.addressable, targets, 0
        )
        return rows.chosen.tolist()
