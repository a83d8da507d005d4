"""DFlash drafters with random weights, and what they should compute, written anew in float64."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.reference import OPS
from ninfer_qwen3_5.load.text import TextLoader
from ninfer_qwen3_5.model.lending import LentParts
from ninfer_spec_dflash.config import DFlashConfig
from ninfer_spec_dflash.drafter import DFlashDrafter
from tests.model.conftest import Case, float64_delta_rule

VOCAB, MASK, BLOCK = 320, 317, 8
SLIDING, FULL = "sliding_attention", "full_attention"


def published(kind: str, **changes: Any) -> dict[str, Any]:
    """A ``config.json`` as released ones are, with heads that are not the target's."""
    nested = {"target_layer_ids": [0, 2, 3], "mask_token_id": MASK, "block_size": BLOCK}
    if kind == "dflash2":
        nested |= {"conv_kernel_size": 2, "conv_group_size": 16}
        nested |= {"selector_rank": 12, "selector_top_k": 16}
    nested |= changes.pop("nested", {})
    return {
        "architectures": ["DFlashDraftModel" if kind == "dflash" else "DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "layer_types": [SLIDING, FULL],
        "sliding_window": 40,
        "num_target_layers": 4,
        "vocab_size": VOCAB,
        "dflash_config": nested,
        **changes,
    }


def small_config(kind: str) -> DFlashConfig:
    """One layer, one tap: for tests of what goes on around a drafter."""
    changes = {"num_hidden_layers": 1, "layer_types": [FULL], "nested": {"target_layer_ids": [2]}}
    return DFlashConfig.from_json(published(kind, **changes, num_target_layers=None))


class RandomSource:
    """Hands out random parameters of any name and shape, the same for one name every time."""

    def __init__(self, stored: str = "fp32") -> None:
        self._stored = stored
        self.given: dict[str, Tensor] = {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Norms are far from trivial, products keep the size of what they take."""
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            made = 1.0 + 0.4 * noise
        elif name.endswith("base_kernel"):
            made = 0.5 * noise
        elif name.endswith("codebook"):
            made = 0.7 * noise
        else:
            made = 1.2 * noise * shape[-1] ** -0.5
        return self.given.setdefault(name, made)

    def matrix(self, prefix: str, shapes: Any, use: str | None) -> WeightMatrix:
        whole = torch.cat([self.tensor(prefix + name, shape) for name, shape in shapes.items()])
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[self._stored]
        return WeightMatrix(self._stored, *whole.shape, {"weight": whole.to(dtype)})

    def vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.tensor(name, shape).clone()


def bind_block(case: Case, drafter: DFlashDrafter) -> dict[str, Tensor]:
    """Give the drafter random weights beside the case's model; they are returned by name."""
    source = RandomSource()
    loader = TextLoader(source, case.model.config, OPS)
    drafter.bind(LentParts(case.model, loader, drafter.component))
    return {name.split(".", 1)[1]: tensor for name, tensor in source.given.items()}


def features(case: Case, taps: tuple[int, ...], token_ids: list[int]) -> Tensor:
    """What transformers' layers ``taps`` give for each token, float64 [n, len(taps) * H]."""
    kept: dict[int, Tensor] = {}

    def keep(place: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            kept[place] = (output[0] if isinstance(output, tuple) else output).reshape(
                len(token_ids), -1
            )

        return hook

    layers = case.exact.model.layers
    hooks = [layers[place].register_forward_hook(keep(place)) for place in taps]
    try:
        with torch.no_grad(), float64_delta_rule():
            case.exact.model(torch.tensor([token_ids]))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat([kept[place] for place in taps], dim=1)


class Formula:
    """The drafter of a configuration and its weights, as it is described: no cache, no pages."""

    def __init__(self, case: Case, config: DFlashConfig, weights: dict[str, Tensor]) -> None:
        self.case = case
        self.config = config
        self._weights = {name: tensor.double() for name, tensor in weights.items()}

    @torch.no_grad()
    def logits(self, token_ids: list[int], drafts: int, taps: tuple[int, ...] = ()) -> Tensor:
        """[drafts, V] behind ``token_ids``, of which the last is the anchor."""
        rows = self.rows(token_ids, drafts, taps)
        return rows @ self.case.exact.lm_head.weight.T

    @torch.no_grad()
    def rows(self, token_ids: list[int], drafts: int, taps: tuple[int, ...] = ()) -> Tensor:
        """The normed rows [drafts, H] of the mask tokens."""
        config, anchor = self.config, len(token_ids) - 1
        seen = features(self.case, taps or config.taps, token_ids[:-1])
        context = self._norm(seen @ self._weights["fc.weight"].T, "hidden_norm.weight")
        block = torch.tensor([token_ids[-1], *[config.mask_token_id] * drafts])
        x = self.case.exact.model.embed_tokens(block) * config.embedding_scale
        for place in range(len(config.layers)):
            x = x + self._around(place, "attention", x, context, anchor)
            x = x + self._around(place, "mlp", x, context, anchor)
        return self._norm(x, "norm.weight")[1:]

    def _around(self, place: int, kind: str, x: Tensor, context: Tensor, anchor: int) -> Tensor:
        norm = "input_layernorm" if kind == "attention" else "post_attention_layernorm"
        normed = self._norm(x, f"layers.{place}.{norm}.weight")
        name = f"layers.{place}.{kind}_conv."
        if self.config.conv is None:
            return self._sublayer(place, kind, normed, context, anchor)
        groups = self.config.hidden_size // self.config.conv.group_size
        dynamic = normed @ self._weights[name + "kernel_projection.weight"].T
        taps = dynamic.view(len(x), 2, 2, groups).repeat_interleave(
            self.config.conv.group_size, dim=3
        )
        taps = taps + self._weights[name + "base_kernel"]
        entering = self._mixed(normed, taps[:, 0])
        return self._mixed(self._sublayer(place, kind, entering, context, anchor), taps[:, 1])

    def _mixed(self, x: Tensor, taps: Tensor) -> Tensor:
        before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
        return taps[:, 0] * x + taps[:, 1] * before

    def _sublayer(self, place: int, kind: str, x: Tensor, context: Tensor, anchor: int) -> Tensor:
        if kind == "attention":
            return self._attention(place, x, context, anchor)
        gate, up, down = (
            self._weights[f"layers.{place}.mlp.{part}_proj.weight"]
            for part in ("gate", "up", "down")
        )
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _attention(self, place: int, x: Tensor, context: Tensor, anchor: int) -> Tensor:
        config, pattern = self.config, self.config.layers[place]
        at = torch.arange(anchor + len(x))
        queries = self._heads(place, "q", x, at[anchor:])
        both = torch.cat([context, x])
        keys, values = self._heads(place, "k", both, at), self._heads(place, "v", both, None)
        repeat = config.num_attention_heads // config.num_key_value_heads
        keys, values = (part.repeat_interleave(repeat, dim=0) for part in (keys, values))
        scores = queries @ keys.transpose(1, 2) * config.head_dim**-0.5
        distance = at[anchor:].unsqueeze(1) - at
        hidden = distance < 0 if pattern.causal else torch.zeros_like(distance, dtype=torch.bool)
        if pattern.window is not None:
            hidden = hidden | (distance >= pattern.window) | (-distance >= pattern.window)
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values
        output = self._weights[f"layers.{place}.self_attn.o_proj.weight"]
        return mixed.transpose(0, 1).reshape(len(x), -1) @ output.T

    def _heads(self, place: int, part: str, x: Tensor, at: Tensor | None) -> Tensor:
        """[heads, n, D], normed and turned where they have positions."""
        size, prefix = self.config.head_dim, f"layers.{place}.self_attn."
        made = (x @ self._weights[f"{prefix}{part}_proj.weight"].T).view(len(x), -1, size)
        made = made.transpose(0, 1)
        if at is None:
            return made
        made = self._norm(made, f"{prefix}{part}_norm.weight")
        steps = torch.arange(size // 2, dtype=torch.float64) * 2 / size
        angles = at.double().unsqueeze(1) * self.config.rope_theta**-steps
        cos, sin = (torch.cat([turn, turn], dim=1) for turn in (angles.cos(), angles.sin()))
        turned = torch.cat([-made[..., size // 2 :], made[..., : size // 2]], dim=-1)
        return made * cos + turned * sin

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        return x * (mean + self.config.rms_norm_eps).rsqrt() * self._weights[name]

    def walk(self, rows: Tensor, logits: Tensor, anchor: int) -> list[int]:
        """DFlash2's choice: for each row the best of its candidates, given the one before it."""
        config, before, taken = self.config, anchor, []
        assert config.selector is not None
        scaled = logits * config.output_multiplier
        if config.logit_softcap is not None:
            scaled = config.logit_softcap * (scaled / config.logit_softcap).tanh()
        scaled[:, config.mask_token_id] = -torch.inf
        projection = self._weights["candidate_selector.hidden_projection.weight"]
        left = self._weights["candidate_selector.predecessor_codebook"]
        right = self._weights["candidate_selector.successor_codebook"]
        for row, scores in zip(rows @ projection.T, scaled, strict=True):
            found = scores.topk(config.selector.top_k).indices
            pairs = scores[found] + right[found] @ (left[before] * row)
            before = int(found[pairs.argmax()])
            taken.append(before)
        return taken


def largest(logits: Tensor) -> list[int]:
    """DFlash's choice."""
    kept = logits.clone()
    kept[:, MASK] = -torch.inf
    return kept.argmax(1).tolist()


def patterns() -> list[dict[str, Any]]:
    """Configurations that differ in what a row of the block sees."""
    kinds = [[SLIDING, SLIDING], [FULL, FULL], [SLIDING, FULL]]
    causal: list[dict[str, Any]] = [{}, {"is_causal": True}, {"is_causal": False}]
    return [{"layer_types": types, **said} for types, said in itertools.product(kinds, causal)]
