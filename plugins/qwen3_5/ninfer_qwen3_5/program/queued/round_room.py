"""Bytes that decode rounds hold beside the tables, by arithmetic over their sizes.

All graphs draw their intermediate tensors from one pool, and one runs at a time: the pool holds
what the largest of them needs, and what captured halves leave for their other halves. The logits of
all rounds are one tensor of the tables (``rounds.take_logits``).
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.program.drafting import DraftRoom

AT_ONCE = 8
"""Rows whose log-probabilities a backend may list at a time, whatever a round has (``ops_triton``
does)."""

LISTED = 40
"""Bytes for each logit of these rows: values, and codes of eight bytes twice."""

TESTED = 40
"""For each logit of one row of every sequence while its drafts are tried against their law."""

SUMMARY = 192 << 10
"""For each row that is drawn, beside its logits: what blocks of the row say, candidates, and sums
by digit where a cut lies beyond them."""

SPLITS = 64
"""Parts of a row's context whose attention is summed apart, at most."""

SEGMENTS = 64 << 20
"""What a pool keeps beyond what lies in it: the ends of its segments of 2 and 20 MiB."""


@dataclass(frozen=True, slots=True)
class RoundRoom:
    """Rounds of up to ``sequences`` sequences, each of up to ``draft.rows`` rows of which each has
    logits of ``vocab`` tokens."""

    config: TextConfig
    vocab: int
    sequences: int
    draft: DraftRoom

    @property
    def rows(self) -> int:
        return self.sequences * max(1, self.draft.rows)

    def pool(self) -> int:
        """What the graphs' pool holds."""
        return self.passing() + self.kept()

    def passing(self) -> int:
        """Intermediate tensors of the largest body: its layers', then those of its draws. Drafts
        have no more rows than what verifies them, and their logits the room of processed ones."""
        return self.rows * self._row() + self._draws() + SEGMENTS

    def listing(self) -> int:
        """The same where log-probabilities are listed behind it, outside of graphs."""
        return min(self.rows, AT_ONCE) * self.vocab * LISTED + SEGMENTS

    def kept(self) -> int:
        """What rounds with masks leave between their halves, for every number of sequences: rows
        after the final norm, taps, rotary tables, and a kilobyte of numbers for each row."""
        config, draft = self.config, self.draft
        if not draft.rows:
            return 0
        values = (draft.hidden + draft.taps) * config.hidden_size
        row = 2 * values + 8 * config.rotary_dim + 1024
        return row * draft.rows * self.sequences * (self.sequences + 1) // 2

    def _row(self) -> int:
        """Of one row of the largest layer."""
        attended = self.config.num_attention_heads * self.config.head_dim
        return layer_bytes(self.config, self.draft.taps) + 4 * SPLITS * (attended + 2)

    def _draws(self) -> int:
        """Processed logits; where drafts are drawn, laws beside them."""
        drawn = self.rows * (4 * self.vocab + SUMMARY)
        if self.draft.draws:
            drawn += drawn + self.vocab * self.sequences * TESTED
        return drawn


def layer_bytes(config: TextConfig, taps: int = 0) -> int:
    """Bytes for each token of the intermediate tensors of the widest layer, counted generously:
    twice what it keeps at once. ``taps`` layers' residuals are kept too, and what a drafter makes
    of them."""
    values, heads = config.linear_value_dim, config.linear_num_value_heads
    attention = config.num_attention_heads * config.head_dim
    stacked = max(
        config.conv_channels + values + 2 * heads,
        2 * attention + 2 * config.num_key_value_heads * config.head_dim,
    )
    chunk_states = heads * config.linear_key_head_dim * config.linear_value_head_dim // 16
    per_token = 2 * (
        3 * stacked + 3 * config.intermediate_size + 4 * config.hidden_size + 4 * attention
    )
    per_token += 4 * 4 * values + chunk_states
    per_token += 2 * (taps + 4 * bool(taps)) * config.hidden_size
    return 2 * per_token
