"""From the normed rows of a block to its drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ninfer_core.contract.speculation import Proposal, TargetParts
from ninfer_core.ops.contracts.values import Candidates, SamplingRows
from ninfer_core.ops.drawn_drafts import candidates_of, draw, law_of, stacked_law
from ninfer_spec_dflash.config import FINAL_HIDDEN, DFlashConfig, SelectorConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Drafted:
    """What drafts are chosen from: residual ``rows`` x[B * K, H] and their ``logits``
    f32[B * K, V], behind tokens ``ids`` i32[B]. The tokens to choose stand at ``positions``
    i32[B * K]. ``drawing`` as ``DraftBackend.propose`` has it."""

    rows: Tensor
    logits: Tensor
    ids: Tensor
    positions: Tensor
    drawing: SamplingRows | None


class Choice(Protocol):
    """Chooses drafts i32[B, K]."""

    def __call__(self, drafted: Drafted) -> Proposal: ...


def scaled(candidates: Candidates, config: DFlashConfig) -> Candidates:
    """With the logits that the drafter was trained on, ``c tanh(m z / c)``: their order stays, so
    that the largest one needs none of it, and a law does."""
    values = candidates.values * config.output_multiplier
    cap = config.logit_softcap
    return Candidates(candidates.ids, values if cap is None else cap * (values / cap).tanh())


class Largest:
    """DFlash: each row for itself, the largest logit or a draw."""

    def __init__(self, target: TargetParts, config: DFlashConfig) -> None:
        self._target = target
        self._config = config

    def __call__(self, drafted: Drafted) -> Proposal:
        target, ops, count = self._target, self._target.ops, drafted.ids.shape[0]
        if drafted.drawing is None:
            drawn = ops.argmax_rows(drafted.logits, target.addressable)
            return Proposal(drawn.tokens.view(count, -1))
        found = candidates_of(ops, drafted.logits, target.addressable)
        trained = scaled(found, self._config)
        tokens, law = draw(ops, trained, drafted.drawing, drafted.positions)
        return Proposal(tokens.view(count, -1), law_of(law, count))


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

    def __call__(self, drafted: Drafted) -> Proposal:
        target, ops = self._target, self._target.ops
        normed = ops.rms_norm(drafted.rows, self._final_scale, self._config.rms_norm_eps)
        features = ops.linear_decode(normed, self._projection)
        found = ops.draft_candidates(drafted.logits, self._count, target.addressable)
        trained = scaled(found, self._config)
        if drafted.drawing is not None:
            return self._drawn(drafted, drafted.drawing, trained, features)
        return Proposal(
            ops.draft_walk(trained, features, drafted.ids, self._predecessor, self._successor)
        )

    def _drawn(
        self, drafted: Drafted, drawing: SamplingRows, candidates: Candidates, features: Tensor
    ) -> Proposal:
        """The walk with a draw in place of the largest score: the law of a row is that given the
        token drawn in the row before it."""
        import torch

        count = drafted.ids.shape[0]
        ids, values, rows = (
            part.view(count, -1, part.shape[1])
            for part in (candidates.ids, candidates.values, features)
        )
        positions, taken = drafted.positions.view(count, -1), drafted.ids
        tokens: list[Tensor] = []
        laws: list[Candidates] = []
        for place in range(ids.shape[1]):
            left = self._predecessor[taken.long()].float() * rows[:, place].float()
            right = self._successor[ids[:, place].long()].float()
            scores = values[:, place] + (left.unsqueeze(1) * right).sum(2)
            found = Candidates(ids[:, place].contiguous(), scores)
            taken, law = draw(self._target.ops, found, drawing, positions[:, place].contiguous())
            tokens.append(taken)
            laws.append(law)
        return Proposal(torch.stack(tokens, dim=1), stacked_law(laws))
