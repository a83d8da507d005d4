"""From logits of a unit's rows to tokens, log-probabilities and row states."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.frontend import ColumnState, MaskProvider
from ninfer_core.contract.sampling import TokenLogprobs, TopLogprob
from ninfer_core.contract.units import RowStatus
from ninfer_core.ops.contracts.values import (
    DrawPurpose,
    LogprobRows,
    SamplingRows,
    TokenCounts,
    TokenMasks,
)
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.program.sequence import Sequence

if TYPE_CHECKING:
    from torch import Tensor


MAX_BIASED = 1024
"""Tokens of one request that may have a bias."""
MAX_BANNED = 256
"""Tokens of one request that may be forbidden until ``min_tokens`` were produced."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One produced token per row. A row that is not OK has a meaningless token."""

    token_ids: list[int]
    statuses: list[RowStatus]
    logprobs: list[tuple[TokenLogprobs, ...]]


class Sampler:
    """Token counts by execution row, and the sampling settings of the present membership."""

    def __init__(self, ops: Ops, rows: int, vocab_rows: int, addressable: int) -> None:
        import torch

        self.ops = ops
        self.addressable = addressable
        self.mask_words = -(-vocab_rows // 32)
        self.counts = TokenCounts(
            torch.zeros((rows, vocab_rows), dtype=torch.int32),
            torch.zeros((rows, vocab_rows), dtype=torch.bool),
        )
        self._members: tuple[int, ...] = ()
        self._settings: SamplingRows | None = None

    def admit(self, sequence: Sequence) -> None:
        """Start counting for a sequence that took its execution row; its ledger counts already."""
        import torch

        row = sequence.row
        self.counts.generated[row].zero_()
        self.counts.prompt[row].zero_()
        prompt = torch.from_numpy(sequence.request.prepared.token_ids).long()
        self.counts.prompt[row, prompt] = True
        if sequence.generated:
            self.count([sequence], [sequence.generated])

    def count(self, sequences: Rows[Sequence], tokens: Rows[Rows[int]]) -> None:
        """Add accepted tokens of each sequence to what its penalties see, where it has any."""
        import torch

        counted = [s.request.sampling.penalised for s in sequences]
        if not any(counted):
            return
        sequences = [s for s, needed in zip(sequences, counted, strict=True) if needed]
        tokens = [row for row, needed in zip(tokens, counted, strict=True) if needed]
        width = max(len(row) for row in tokens)
        padded = [[*row, *[0] * (width - len(row))] for row in tokens]
        self.ops.count_tokens(
            self.counts,
            lanes_of(sequences),
            torch.tensor(padded, dtype=torch.int32),
            _ints([len(row) for row in tokens]),
        )

    def sample(
        self,
        logits_BV: Tensor,
        sequences: Rows[Sequence],
        masks: Rows[MaskProvider | None],
        purpose: DrawPurpose,
    ) -> Sampled:
        """Draw the next token of every row: the one at its ledger's end."""
        settings = self.settings_of(sequences)
        lanes = lanes_of(sequences)
        positions = _ints([sequence.ledger_length for sequence in sequences])
        token_masks, dead = self.fill(masks, [()] * len(masks), 1)
        processed = self.ops.process_logits(
            logits_BV, settings, self.counts, lanes, positions, None, token_masks
        )
        tokens = self.ops.sample_tokens(processed, settings, positions, purpose)
        broken = self.ops.nonfinite_rows(logits_BV, self.addressable).tolist()
        listed = self.listed(logits_BV, tokens, [sequence.top for sequence in sequences])
        logprobs: list[tuple[TokenLogprobs, ...]] = [
            () if entry is None else (entry,) for entry in listed
        ]
        statuses = [_status(*flags) for flags in zip(broken, dead, strict=True)]
        return Sampled(tokens.tolist(), statuses, logprobs)

    def listed(
        self, logits_TV: Tensor, tokens: Tensor, asked: Rows[int | None]
    ) -> list[TokenLogprobs | None]:
        """Log-probabilities of ``tokens`` i32[T], with as many alternatives as is ``asked`` of each
        row; None where nothing is."""
        if all(count is None for count in asked):
            return [None] * len(asked)
        tops = [count or 0 for count in asked]
        rows = self.ops.logprobs(logits_TV, tokens, max(tops))
        listed = token_logprobs(rows, tokens.tolist(), tops)
        return [None if count is None else x for count, x in zip(asked, listed, strict=True)]

    def fill(
        self, masks: Rows[MaskProvider | None], drafts: Rows[tuple[int, ...]], width: int
    ) -> tuple[TokenMasks | None, list[bool]]:
        """Masks of ``width`` rows of each sequence, whose rows behind its ``drafts`` are not used,
        and which rows' constraint allows nothing."""
        dead = [False] * (len(masks) * width)
        if all(mask is None for mask in masks):
            return None, dead
        import torch

        words = torch.zeros((len(dead), self.mask_words), dtype=torch.int32)
        active = [False] * len(dead)
        for index, (mask, row) in enumerate(zip(masks, drafts, strict=True)):
            if mask is None:
                continue
            first = index * width
            out = words[first : first + len(row) + 1].numpy().view("uint32")
            for place, state in enumerate(mask.fill(row, out)):
                active[first + place] = state is ColumnState.READY
                dead[first + place] = state is ColumnState.DEAD_END
        return TokenMasks(words, torch.tensor(active)), dead

    def settings_of(self, sequences: Rows[Sequence]) -> SamplingRows:
        """Settings as tensors, rebuilt only when the membership changed."""
        members = tuple(sequence.order for sequence in sequences)
        if self._settings is None or members != self._members:
            self._members, self._settings = members, sampling_rows(sequences)
        return self._settings


def token_logprobs(rows: LogprobRows, token_ids: Rows[int], tops: Rows[int]) -> list[TokenLogprobs]:
    """The contract's form of a block of log-probabilities, ``tops`` alternatives of each row."""
    chosen = rows.chosen.tolist()
    ids, values = rows.top_ids.tolist(), rows.top_values.tolist()
    return [
        TokenLogprobs(
            token_ids[t],
            chosen[t],
            tuple(TopLogprob(i, v) for i, v in zip(ids[t][:top], values[t][:top], strict=True)),
        )
        for t, top in enumerate(tops)
    ]


def sampling_rows(sequences: Rows[Sequence]) -> SamplingRows:
    """The sampling settings of ``sequences`` as tensors.

    Stop ids are banned below the position at which ``min_tokens`` have been produced.
    """
    import torch

    params = [sequence.request.sampling for sequence in sequences]
    rules = [sequence.request.rules for sequence in sequences]

    def floats(name: str) -> Tensor:
        return torch.tensor([getattr(p, name) for p in params], dtype=torch.float32)

    bias_ids, bias = _ragged([list(p.logit_bias.items()) for p in params])
    banned, _ = _ragged([[(token, 0.0) for token in sorted(r.suppressed_until_min)] for r in rules])
    return SamplingRows(
        temperature=floats("temperature"),
        top_k=_ints([p.top_k for p in params]),
        top_p=floats("top_p"),
        min_p=floats("min_p"),
        presence=floats("presence_penalty"),
        frequency=floats("frequency_penalty"),
        repetition=floats("repetition_penalty"),
        seeds=torch.tensor([_signed(p.seed or 0) for p in params], dtype=torch.int64),
        bias_ids=bias_ids,
        bias=bias,
        banned_ids=banned,
        banned_before=_ints([s.prompt_length + s.request.rules.min_tokens for s in sequences]),
    )


def lanes_of(sequences: Rows[Sequence]) -> Tensor:
    """Execution rows i64[B], by which counts are kept."""
    import torch

    return torch.tensor([sequence.row for sequence in sequences])


def _status(broken: bool, dead: bool) -> RowStatus:
    if broken:
        return RowStatus.NONFINITE
    return RowStatus.DEAD_END if dead else RowStatus.OK


def _ragged(rows: list[list[tuple[int, float]]]) -> tuple[Tensor, Tensor]:
    """Pairs as i32 ids padded with -1 and f32 values, both [B, longest]."""
    import torch

    width = max(len(row) for row in rows)
    ids = [[*(i for i, _ in row), *[-1] * (width - len(row))] for row in rows]
    values = [[*(v for _, v in row), *[0.0] * (width - len(row))] for row in rows]
    shape = (len(rows), width)
    return (
        torch.tensor(ids, dtype=torch.int32).reshape(shape),
        torch.tensor(values, dtype=torch.float32).reshape(shape),
    )


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _ints(values: list[int]) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32)
