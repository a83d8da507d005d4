"""A DFlash block drafter in plain torch, named as its tensors are in released checkpoints.

Written from the published description (arXiv 2602.06036) and independent of NInfer's engine: the
parity tests compare the two. B sequences, N blocks each, W rows a block, T tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Blocks:
    """Where blocks stand: ``anchors`` [B, N] are the positions of their first rows."""

    anchors: Tensor
    width: int

    @property
    def positions(self) -> Tensor:
        """[B, N * W] of the rows."""
        steps = torch.arange(self.width, device=self.anchors.device)
        return (self.anchors[..., None] + steps).flatten(1)

    def visible(self, tokens: int, causal: bool, window: int | None) -> Tensor:
        """Which of T context tokens and N * W rows each row sees: bool [B, N * W, T + N * W]."""
        rows = self.positions
        own = self.anchors.repeat_interleave(self.width, 1)
        context = torch.arange(tokens, device=rows.device)
        number = torch.arange(rows.shape[1], device=rows.device) // self.width
        before = context < own[..., None]
        inside = (number[:, None] == number).expand(rows.shape[0], -1, -1)
        if causal:
            inside = inside & (rows[:, None, :] <= rows[:, :, None])
        if window is not None:
            before = before & (rows[..., None] - context < window)
            inside = inside & ((rows[:, :, None] - rows[:, None, :]).abs() < window)
        return torch.cat([before, inside], -1)


class Norm(nn.Module):
    """Root mean square norm with weight w (not 1 + w)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Grouped-query attention whose keys and values of the context come from features."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        size, head, eps = config["hidden_size"], config["head_dim"], config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = nn.Linear(size, self.heads * head, bias=False)
        self.k_proj = nn.Linear(size, self.kv_heads * head, bias=False)
        self.v_proj = nn.Linear(size, self.kv_heads * head, bias=False)
        self.o_proj = nn.Linear(self.heads * head, size, bias=False)
        self.q_norm, self.k_norm = Norm(head, eps), Norm(head, eps)
        self.theta = float((config.get("rope_parameters") or config)["rope_theta"])

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Rows x [B, R, H] at ``positions`` [B, R], over context [B, T, H] at 0..T-1 and rows."""
        tokens = torch.arange(context.shape[1], device=x.device).expand(x.shape[0], -1)
        places = torch.cat([tokens, positions], 1)
        source = torch.cat([context, x], 1)
        query = rotated(self.q_norm(_split(self.q_proj(x), self.heads)), positions, self.theta)
        key = rotated(self.k_norm(_split(self.k_proj(source), self.kv_heads)), places, self.theta)
        value = _split(self.v_proj(source), self.kv_heads)
        times = self.heads // self.kv_heads
        key, value = (t.repeat_interleave(times, 2).transpose(1, 2) for t in (key, value))
        out = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key, value, attn_mask=visible[:, None]
        )
        mixed: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return mixed


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        size, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A pre-norm decoder layer over the rows of the blocks."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        size, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = Norm(size, eps), Norm(size, eps)
        self.self_attn, self.mlp = Attention(config), Mlp(config)

    def forward(self, x: Tensor, context: Tensor, blocks: Blocks, visible: Tensor) -> Tensor:
        normed = self.input_layernorm(x)
        x = x + self.self_attn(normed, context, blocks.positions, visible)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Drafter(nn.Module):
    """The stack; embedding and head are the target's."""

    layer = Layer

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        size, eps = config["hidden_size"], config["rms_norm_eps"]
        taps = config["dflash_config"]["target_layer_ids"]
        self.patterns = patterns(config)
        self.fc = nn.Linear(len(taps) * size, size, bias=False)
        self.hidden_norm, self.norm = Norm(size, eps), Norm(size, eps)
        self.layers = nn.ModuleList(self.layer(config) for _ in self.patterns)
        for name, parameter in self.named_parameters():
            if name.endswith("_proj.weight") or name == "fc.weight":
                nn.init.normal_(parameter, std=0.02)

    def forward(self, embedded: Tensor, features: Tensor, blocks: Blocks) -> Tensor:
        """Normed hidden rows [B, N * W, H]; all but the first of a block predict their own token.

        Args:
            embedded: [B, N * W, H], each block the anchor's embedding, then the mask's.
            features: [B, T, taps * H], the target's residual after each tapped layer, of every
                token; rows see those before their anchor alone.
            blocks: where the blocks stand.
        """
        context = self.hidden_norm(self.fc(features))
        x = embedded
        for layer, (causal, window) in zip(self.layers, self.patterns, strict=True):
            x = layer(x, context, blocks, blocks.visible(context.shape[1], causal, window))
        out: Tensor = self.norm(x)
        return out


def patterns(config: Mapping[str, Any]) -> list[tuple[bool, int | None]]:
    """(causal, window) of each layer: sliding layers are causal unless ``is_causal`` says not."""
    found = []
    for kind in config["layer_types"]:
        sliding = kind == "sliding_attention"
        causal = config.get("is_causal", sliding)
        found.append((bool(causal), config["sliding_window"] if sliding else None))
    return found


def rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of all dimensions of x [B, R, heads, D], the halves paired."""
    half = x.shape[-1] // 2
    rates = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (positions[..., None].double() * rates.to(positions.device))[:, :, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def block_ids(ids: Tensor, blocks: Blocks, mask: int) -> Tensor:
    """Input tokens [B, N * W] of the blocks over ids [B, T]."""
    rows = torch.full((*blocks.anchors.shape, blocks.width), mask, device=ids.device)
    rows[..., 0] = ids.gather(1, blocks.anchors)
    return rows.flatten(1)


class Taps:
    """Collects the residual stream after chosen layers of a target while it runs."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self._found: dict[int, Tensor] = {}
        self.layers = layers
        for place in layers:
            model.model.layers[place].register_forward_hook(self._keep(place))

    def _keep(self, place: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            self._found[place] = output[0] if isinstance(output, tuple) else output

        return hook

    def features(self) -> Tensor:
        """[B, T, taps * H] of the last forward."""
        return torch.cat([self._found[place] for place in self.layers], -1)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, -1)
