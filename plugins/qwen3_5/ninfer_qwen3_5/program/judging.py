"""From the logits of verified rows to the tokens that a round produces."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.frontend import MaskProvider
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.units import RowStatus
from ninfer_core.ops.contracts.values import DrawPurpose, SamplingRows
from ninfer_qwen3_5.program.drawn_drafts import DraftLaws, accepted_tokens
from ninfer_qwen3_5.program.sampler import Sampler, lanes_of
from ninfer_qwen3_5.program.sequence import Sequence

if TYPE_CHECKING:
    from torch import Tensor

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Judged:
    """What one sequence produced: the drafts taken, then a token of the target's own."""

    token_ids: tuple[int, ...]
    status: RowStatus
    logprobs: tuple[TokenLogprobs, ...]


class Judge:
    """Draws every row as plain decoding would and takes drafts while they are what was drawn; with
    ``laws`` of drafts that were drawn themselves, takes them by the ratio of probabilities.

    A row whose logits are broken, or whose constraint allows nothing, ends what the round produces
    before it; only where it is the first one the sequence gets its status.
    """

    def __init__(self, sampler: Sampler, laws: DraftLaws | None = None) -> None:
        self._sampler = sampler
        self._laws = laws

    def settings(self, sequences: Rows[Sequence]) -> SamplingRows | None:
        """By which drafts of these sequences are drawn, if they are."""
        return None if self._laws is None else self._sampler.settings_of(sequences)

    def judge(
        self,
        logits_TV: Tensor,
        sequences: Rows[Sequence],
        drafts: Rows[tuple[int, ...]],
        masks: Rows[MaskProvider | None],
    ) -> list[Judged]:
        """``logits_TV`` holds W rows of each sequence, W - 1 the most drafts of one."""
        import torch

        sampler, width = self._sampler, logits_TV.shape[0] // len(sequences)
        padded = torch.tensor(
            [[*row, *[NO_TOKEN] * (width - 1 - len(row))] for row in drafts], dtype=torch.int32
        )
        ends = torch.tensor([s.ledger_length for s in sequences], dtype=torch.int32)
        positions = (ends.unsqueeze(1) + torch.arange(width, dtype=torch.int32)).flatten()
        settings = sampler.settings_of(sequences)
        filled, dead = sampler.fill(masks, drafts, width)
        processed = sampler.ops.process_logits(
            logits_TV, settings, sampler.counts, lanes_of(sequences), positions, padded, filled
        )
        if self._laws is None or width == 1:
            drawn = sampler.ops.sample_tokens(processed, settings, positions, DrawPurpose.DECODE)
        else:
            offered = torch.tensor([len(row) for row in drafts], dtype=torch.int32)
            anchors = ends - 1
            law, tried = self._laws.of(lanes_of(sequences), anchors, padded, offered)
            drawn = accepted_tokens(sampler.ops, processed, settings, padded, tried, law, positions)
        broken = sampler.ops.nonfinite_rows(logits_TV, sampler.addressable).tolist()
        tokens = drawn.tolist()
        asked = [sequence.top for sequence in sequences for _ in range(width)]
        logprobs = sampler.listed(logits_TV, drawn, asked)
        return [
            judged_row(
                tokens[first : first + len(row) + 1],
                row,
                broken[first : first + width],
                dead[first : first + width],
                logprobs[first : first + width],
            )
            for first, row in zip(range(0, len(tokens), width), drafts, strict=True)
        ]


def judged_row(
    drawn: list[int],
    drafts: tuple[int, ...],
    broken: list[bool],
    dead: list[bool],
    logprobs: list[TokenLogprobs | None],
) -> Judged:
    """What the draws of one sequence's rows come to; all lists have an entry for each row."""
    count = 0
    while not (broken[count] or dead[count]):
        count += 1
        if count > len(drafts) or drawn[count - 1] != drafts[count - 1]:
            break
    if not count:
        status = RowStatus.NONFINITE if broken[0] else RowStatus.DEAD_END
        return Judged((drawn[0],), status, ())
    kept = tuple(entry for entry in logprobs[:count] if entry is not None)
    return Judged(tuple(drawn[:count]), RowStatus.OK, kept)
