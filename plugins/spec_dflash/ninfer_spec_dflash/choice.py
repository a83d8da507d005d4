"""From the normed rows of a block to its drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.contract.speculation import TargetParts
from ninfer_core.ops.contracts.values import Candidates
from ninfer_spec_dflash.config import FINAL_HIDDEN, DFlashConfig, SelectorConfig

if TYPE_CHECKING:
    from torch import Tensor


class Choice(Protocol):
    """Chooses drafts."""

    def __call__(self, rows: Tensor, logits: Tensor, ids: Tensor) -> Tensor:
        """Drafts i32[B, K] of residual ``rows`` x[B * K, H] and their ``logits`` f32[B * K, V],
        behind tokens ``ids`` i32[B]."""
        ...


class Largest:
    """DFlash: the largest logit of each row, for itself."""

    def __init__(self, target: TargetParts) -> None:
        self._target = target

    def __call__(self, rows: Tensor, logits: Tensor, ids: Tensor) -> Tensor:
        target = self._target
        drawn = target.ops.argmax_rows(logits, target.addressable)
        return drawn.tokens.view(ids.shape[0], -1)


class Selector:
    """DFlash2: the largest logits of each row are its candidates; from left to right, the one with
    the largest sum of its logit and its pair score with the token before it."""

    def __init__(
        self,
        target: TargetParts,
        config: DFlashConfig,
        selector: SelectorConfig,
        final_scale: Tensor,
    ) -> None:
        prefix, table = "candidate_selector.", (config.vocab_size, selector.rank)
        shape = (selector.rank, config.hidden_size)
        self._projection = target.matrix(prefix + "hidden_projection.weight", shape, FINAL_HIDDEN)
        self._predecessor = target.table(prefix + "predecessor_codebook", table)
        self._successor = target.table(prefix + "successor_codebook", table)
        self._final_scale = final_scale
        self._config = config
        self._count = min(selector.top_k, target.addressable - 1)
        self._target = target

    def __call__(self, rows: Tensor, logits: Tensor, ids: Tensor) -> Tensor:
        target, ops = self._target, self._target.ops
        normed = ops.rms_norm(rows, self._final_scale, self._config.rms_norm_eps)
        features = ops.linear_decode(normed, self._projection)
        candidates = ops.draft_candidates(logits, self._count, target.addressable)
        scaled = Candidates(candidates.ids, self._scaled(candidates.values))
        return ops.draft_walk(scaled, features, ids, self._predecessor, self._successor)

    def _scaled(self, values: Tensor) -> Tensor:
        """Logits as the drafter was trained on them; this keeps their order."""
        values = values * self._config.output_multiplier
        cap = self._config.logit_softcap
        return values if cap is None else cap * (values / cap).tanh()
