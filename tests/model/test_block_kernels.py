"""A block drafter over the Triton kernels computes what it computes over the reference."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from ninfer_core.artifact import open_artifact
from ninfer_core.contract.speculation import TargetRows
from ninfer_core.ops.backend import OpBackend
from ninfer_core.ops.contracts.values import KvCache, PagedRows, Stream
from ninfer_core.ops.reference import BACKEND as REFERENCE
from ninfer_core.ops.select import select_ops
from ninfer_demo_model.source import resolve
from ninfer_ops_triton.backend import BACKEND
from ninfer_ops_triton.launch import INTERPRET
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.load.text import TextLoader, load_text
from ninfer_qwen3_5.model.lending import LentParts, LentPlace
from ninfer_qwen3_5.model.text import TextModel
from ninfer_spec_dflash.config import DFlashConfig
from ninfer_spec_dflash.drafter import DFlashDrafter
from tests.model.block_drafters import RandomSource, published
from tests.ops_triton.quick import patch_once

pytestmark = pytest.mark.skipif(not INTERPRET, reason="needs triton's interpreter")

STARTS, LIVE, WIDTH, SIZE, PAGES = [16, 7], [4, 3], 4, 64, 1
"""Two sequences: their context, and their blocks' live rows."""


class Noted(LentParts):
    """Keeps the logits that drafts are chosen by."""

    seen: Tensor

    def logits(self, stream: Stream, eps: float | None = None) -> Tensor:
        made = super().logits(stream, eps)
        self.seen = made.clone()
        return made


@dataclass
class World:
    """A drafter of random weights beside the demo model, over one backend."""

    model: TextModel
    drafter: DFlashDrafter
    target: Noted
    caches: list[KvCache]
    dtype: torch.dtype

    def place(self, starts: list[int], live: list[int], width: int) -> LentPlace:
        count = len(starts)
        listed = [torch.tensor(x, dtype=torch.int32) for x in (list(range(count)), starts, live)]
        tables = torch.arange(count * PAGES, dtype=torch.int32).view(count, PAGES)
        columns = torch.cat([torch.arange(start, start + width) for start in starts]).int()
        rows = PagedRows(tables, *listed, width)
        positions = columns.expand(3, -1).contiguous()
        return LentPlace.of_rows(self.model.ops, self.model.place(rows, positions))

    def observe(self, taps: list[Tensor]) -> None:
        """Take the context in, 16 rows of each sequence at a time."""
        for first in range(0, max(STARTS), 16):
            live = [max(0, min(16, start - first)) for start in STARTS]
            x = torch.zeros(len(taps) * 16, taps[0].shape[1])
            for b, count in enumerate(live):
                x[16 * b : 16 * b + count] = taps[b][first : first + count]
            ids = torch.zeros(len(x), dtype=torch.int32)
            rows = TargetRows(None, x.to(self.dtype))
            place = self.place([first] * len(taps), live, 16)
            self.drafter.observe(ids, rows, self.caches, place)

    def propose(self) -> tuple[Tensor, Tensor]:
        """Drafts [B, K], and the logits [B, K, V] that they are chosen by."""
        ids, place = torch.tensor([5, 9], dtype=torch.int32), self.place(STARTS, LIVE, WIDTH)
        drafts = self.drafter.propose(ids, TargetRows(None), self.caches, [place]).drafts
        return drafts, self.target.seen.view(*drafts.shape, -1)


def build(kind: str, backend: OpBackend, dtype: torch.dtype, kv_format: str) -> World:
    ops = select_ops(backend, "test").ops
    with open_artifact(resolve()) as artifact:
        target = TextConfig.from_json(artifact.component("text").config)
        model = TextModel(target, load_text(artifact, target, ops), ops, target.vocab_size)
    config = DFlashConfig.from_json(
        published(
            kind, hidden_size=target.hidden_size, intermediate_size=256, num_attention_heads=4,
            num_key_value_heads=2, head_dim=SIZE, sliding_window=SIZE,
            num_target_layers=len(target.layer_types), vocab_size=target.vocab_size,
        )
    )  # fmt: skip
    drafter = DFlashDrafter(config)
    parts = Noted(model, TextLoader(RandomSource("bf16"), target, ops), config.component)
    drafter.bind(parts)
    shape = (len(STARTS) * PAGES, 64, 2, SIZE)
    caches = [
        KvCache(kv_format, *(torch.full(shape, float("nan"), dtype=dtype) for _ in range(2)))
        for _ in drafter.caches
    ]
    return World(model, drafter, parts, caches, dtype)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_rows_are_those_of_the_reference(kind, monkeypatch) -> None:
    patch_once(monkeypatch)
    generator = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        worlds = [
            build(kind, REFERENCE, torch.float32, "fp32"),
            build(kind, BACKEND, torch.bfloat16, "bf16"),
        ]
        width = 3 * worlds[0].model.config.hidden_size
        taps = [(torch.randn(n, width, generator=generator) * 1.5).bfloat16() for n in STARTS]
        for world in worlds:
            world.observe([rows.float() for rows in taps])
        (_, exact), (drafts, logits) = (world.propose() for world in worlds)
    for b, live in enumerate(LIVE):
        rows = slice(0, live - 1)
        off, spread = logits[b, rows] - exact[b, rows], float(exact[b, rows].std())
        assert float(off.square().mean().sqrt()) < 0.06 * spread
        if kind == "dflash":
            taken = exact[b, rows].gather(1, drafts[b, rows].long().unsqueeze(1)).squeeze(1)
            assert bool((taken > exact[b, rows].amax(1) - 0.3 * spread).all())
