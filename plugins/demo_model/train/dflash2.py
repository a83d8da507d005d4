"""What DFlash2 adds to a DFlash drafter: block convolutions and a candidate selector.

Independent of NInfer's engine, as `dflash.py`. G channels share a dynamic weight, R is the
selector's rank, C the number of candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from train.dflash import Blocks, Drafter, Layer

SIDES = TAPS = 2


class BlockConv(nn.Module):
    """Two-tap causal convolutions over a block, before (side 0) and after (side 1) a sublayer:
    ``y_i = sum_t (base_t + dynamic_i,t) x_{i-t}``, nothing being left of the anchor."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        size, group = config["hidden_size"], config["dflash_config"]["conv_group_size"]
        self.group = group
        self.base_kernel = nn.Parameter(torch.zeros(SIDES, TAPS, size))
        self.base_kernel.data[:, 0] = 1.0
        self.kernel_projection = nn.Linear(size, SIDES * TAPS * size // group, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def kernels(self, x: Tensor) -> Tensor:
        """Weights [B, R, sides, taps, H] from the sublayer's normed input x [B, R, H]."""
        dynamic = self.kernel_projection(x).reshape(*x.shape[:-1], SIDES, TAPS, -1)
        found: Tensor = self.base_kernel + dynamic.repeat_interleave(self.group, -1)
        return found

    @staticmethod
    def mixed(x: Tensor, kernels: Tensor, side: int, width: int) -> Tensor:
        """x [B, R, H] in blocks of ``width`` rows."""
        rows = x.reshape(len(x), -1, width, x.shape[-1])
        left = torch.cat([torch.zeros_like(rows[:, :, :1]), rows[:, :, :-1]], 2).flatten(1, 2)
        return kernels[:, :, side, 0] * x + kernels[:, :, side, 1] * left


class Layer2(Layer):
    """A decoder layer with convolutions around attention and MLP."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.attention_conv, self.mlp_conv = BlockConv(config), BlockConv(config)

    def forward(self, x: Tensor, context: Tensor, blocks: Blocks, visible: Tensor) -> Tensor:
        def mix(rows: Tensor) -> Tensor:
            out: Tensor = self.self_attn(rows, context, blocks.positions, visible)
            return out

        x = x + _around(self.attention_conv, self.input_layernorm(x), mix, blocks.width)
        normed = self.post_attention_layernorm(x)
        return x + _around(self.mlp_conv, normed, self.mlp, blocks.width)


def _around(conv: BlockConv, x: Tensor, sublayer: Any, width: int) -> Tensor:
    kernels = conv.kernels(x)
    return conv.mixed(sublayer(conv.mixed(x, kernels, 0, width)), kernels, 1, width)


class Selector(nn.Module):
    """Scores of adjacent tokens: ``<predecessor[a] * f, successor[b]>``, f from the row of b."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        nested, size = config["dflash_config"], config["hidden_size"]
        rank, rows = nested["selector_rank"], config["vocab_size"]
        self.top_k = nested["selector_top_k"]
        self.hidden_projection = nn.Linear(size, rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.empty(rows, rank))
        self.successor_codebook = nn.Parameter(torch.empty(rows, rank))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1)

    def scores(self, logits: Tensor, candidates: Tensor, hidden: Tensor, before: Tensor) -> Tensor:
        """[..., C] of candidates [..., C] after tokens ``before`` [...], with their own logits."""
        weighed = self.predecessor_codebook[before] * self.hidden_projection(hidden)
        pairs = (weighed[..., None, :] * self.successor_codebook[candidates]).sum(-1)
        found: Tensor = logits.gather(-1, candidates) + pairs
        return found

    def walk(self, logits: Tensor, hidden: Tensor, anchors: Tensor) -> Tensor:
        """Greedy drafts [M, K] from logits [M, K, V], hidden [M, K, H] and anchors' tokens [M]."""
        candidates = logits.topk(self.top_k, -1).indices
        before, found = anchors, []
        for row in range(logits.shape[1]):
            scores = self.scores(logits[:, row], candidates[:, row], hidden[:, row], before)
            best = scores.argmax(-1, keepdim=True)
            before = candidates[:, row].gather(-1, best)[:, 0]
            found.append(before)
        return torch.stack(found, 1)


class Drafter2(Drafter):
    """The stack of DFlash2."""

    layer = Layer2

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.candidate_selector = Selector(config)
