"""A random Qwen3.5 of eight tokens: transformers' in float64, ours over the same weights, and ours
with a drafter beside it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from _random_weights import randomise
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.speculation import (
    DraftBackend,
    Proposal,
    TargetFeatures,
    TargetParts,
)
from ninfer_core.device.cpu import open_device
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.reference import OPS
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.load.text import TextLoader, text_parameters
from ninfer_qwen3_5.model.lending import LentParts
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.drafting import Drafting
from ninfer_qwen3_5.program.layout import own_cache
from ninfer_qwen3_5.program.program import TextProgram
from ninfer_spec_mtp.drafter import MtpDrafter

VOCAB = 8
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}


@dataclass(frozen=True)
class TinyTarget:
    """``oracle`` computes in float64, and shares no code with what is tested."""

    oracle: Qwen3_5ForCausalLM
    config: TextConfig
    weights: dict[str, Tensor]

    @classmethod
    def random(cls, seed: int) -> TinyTarget:
        torch.manual_seed(seed)
        made = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**_SIZES)).float().eval()
        randomise(made, seed, embedding=1.0, head=0.25)
        weights = {name: tensor.clone() for name, tensor in made.state_dict().items()}
        config = TextConfig.from_json(
            {**made.config.to_dict(), "architectures": ["Qwen3_5ForCausalLM"]}
        )
        return cls(made.double(), config, weights)

    @torch.inference_mode()
    def logits(self, prompt: Sequence[int], length: int) -> Tensor:
        """f64[V ** length, length + 1, V]: after the prompt and 0 .. ``length`` tokens of every
        continuation, in the order of ``itertools.product``."""
        tails = list(itertools.product(range(VOCAB), repeat=length))
        rows = torch.tensor([[*prompt, *tail] for tail in tails])
        return self.oracle(rows).logits[:, len(prompt) - 1 :]

    def program(
        self, drafts: int, rows: int, *, head: bool = False, queued: bool = False, ops: Ops = OPS
    ) -> TextProgram:
        """For ``rows`` sequences that draft by a table, or by an MTP ``head`` of random weights;
        ``drafts`` 0 decodes plainly. Drafts cost nothing, so that every round makes all of them."""
        model = TextModel(self.config, text_parameters(self, self.config, ops), ops, VOCAB)
        budget = Budget(max_context=64, max_concurrency=rows, prefill_chunk=32)
        held = ExitStack() if queued else None
        drafting = self._drafting(model, drafts, head=head) if drafts else None
        return generation_program(model, budget, open_device(0), held=held, drafting=drafting)[0]

    def likeliest(self) -> list[int]:
        """After each token, the one that mostly follows where nothing else is known."""
        tokens = torch.arange(VOCAB).unsqueeze(1)
        with torch.inference_mode():
            return self.oracle(tokens).logits[:, -1].argmax(-1).tolist()

    def _drafting(self, model: TextModel, drafts: int, *, head: bool) -> Drafting:
        drafter: DraftBackend = TableDrafter(self.likeliest())
        if head:
            drafter = MtpDrafter(own_cache(self.config))
        loader = TextLoader(self, self.config, model.ops)
        drafter.bind(LentParts(model, loader, "mtp"))
        free = DraftCosts(
            rows=(1,),
            plain=(1.0,),
            verify=tuple((1.0,) for _ in range(drafts + 1)),
            draft=tuple((0.0,) for _ in range(drafts + 1)),
        )
        return replace(Drafting(drafter, drafts), costs=free)

    def matrix(self, prefix: str, shapes: Any, use: str | None) -> WeightMatrix:
        """See ``ParameterSource``."""
        whole = torch.cat([self._tensor(prefix + name, shape) for name, shape in shapes.items()])
        return WeightMatrix("fp32", *whole.shape, {"weight": whole})

    def vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See ``ParameterSource``."""
        return self._tensor(name, shape).clone()

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A weight of the checkpoint, or a random one of the MTP head."""
        component, _, rest = name.partition(".")
        if component == "mtp":
            noise = torch.randn(
                shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))
            )
            return 0.3 * noise if len(shape) == 1 else noise * shape[-1] ** -0.5
        found = self.weights[rest if rest == "lm_head.weight" else f"model.{rest}"]
        assert tuple(found.shape) == tuple(shape), name
        return found


class TableDrafter:
    """Drafts the likeliest follower of the token before. See ``DraftBackend``."""

    component = "table"
    caches = ()
    max_drafts = 8
    block = False

    def __init__(self, followers: Sequence[int]) -> None:
        self._followers = torch.tensor(followers, dtype=torch.int32)

    def needs(self) -> TargetFeatures:
        return TargetFeatures()

    def bind(self, target: TargetParts) -> None:
        """It has no weights."""

    def observe(self, ids: Tensor, rows: Any, caches: Any, place: Any) -> None:
        """It takes nothing in."""

    def propose(self, ids: Tensor, rows: Any, caches: Any, places: Sequence[Any]) -> Proposal:
        drafts = []
        for _ in places:
            ids = self._followers[ids.long()]
            drafts.append(ids)
        return Proposal(torch.stack(drafts, dim=1))
