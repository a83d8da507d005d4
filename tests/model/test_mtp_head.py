"""The drafts of the MTP head, against its formula built from transformers' own modules."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

from ninfer_spec_mtp.drafter import MtpDrafter
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.drafters import cache_of, drafting, head_tensors
from tests.model.scripted_costs import free
from tests.model.test_parity import prompts


class Head(torch.nn.Module):
    """Slot t: the embedding of token t + 1 and the target's row t give logits of token t + 2."""

    def __init__(self, case) -> None:
        super().__init__()
        config = case.oracle.config
        config._attn_implementation = "sdpa"
        size, eps = config.hidden_size, config.rms_norm_eps
        place = config.layer_types.index("full_attention")
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = modeling.Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = modeling.Qwen3_5RMSNorm(size, eps=eps)
        self.layers = torch.nn.ModuleList([modeling.Qwen3_5DecoderLayer(config, place)])
        self.norm = modeling.Qwen3_5RMSNorm(size, eps=eps)
        weights = {name.removeprefix("mtp."): t for name, t in head_tensors(case).items()}
        self.load_state_dict(weights)

    def forward(self, model, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1]).expand(3, 1, -1)
        rotary = model.model.rotary_emb(hidden, positions)
        joined = [
            self.pre_fc_norm_embedding(model.model.embed_tokens(tokens)),
            self.pre_fc_norm_hidden(hidden),
        ]
        mixed = self.fc(torch.cat(joined, -1))
        return self.norm(self.layers[0](mixed, position_embeddings=rotary))


@torch.inference_mode()
def expected(case, tokens: list[int], drafts: int) -> tuple[list[int], list[torch.Tensor]]:
    """Drafts after ``tokens``, of which the last has not run, and the logits of each."""
    head, model = Head(case).eval(), case.oracle
    hidden = model.model(torch.tensor([tokens[:-1]])).last_hidden_state
    shifted = torch.tensor([tokens[1:]])
    found, logits = [], []
    for _ in range(drafts):
        out = head(model, shifted, hidden)
        logits.append(model.lm_head(out[0, -1]))
        found.append(int(logits[-1].argmax()))
        shifted = torch.cat([shifted, torch.tensor([found[-1:]])], 1)
        hidden = torch.cat([hidden, out[:, -1:]], 1)
    return found, logits


class Recorded(MtpDrafter):
    """Keeps the logits of the last proposal."""

    def propose(self, *args):
        self.logits = []
        target, self._target = self._target, _Recording(self._target, self.logits)
        try:
            return super().propose(*args)
        finally:
            self._target = target


class _Recording:
    def __init__(self, target, logits) -> None:
        self._parts, self._kept = target, logits

    def __getattr__(self, name):
        return getattr(self._parts, name)

    def logits(self, stream, eps=None):
        made = self._parts.logits(stream, eps)
        self._kept.append(made)
        return made


@pytest.mark.parametrize("kind", ["tied", "untied", "one_kv_head", "large_head"])
def test_proposals_are_those_of_the_formula(build_case, kind) -> None:
    case, drafter = build_case(kind), Recorded(cache_of())
    driver = checkpoint_driver(case.model, "eager", free(drafting(case, drafter, 3)))
    asked = prompts(31, [70])[0]
    row = driver.begin(prompt(asked), max_new_tokens=40)
    driver.prefill(row)
    for _ in range(12):
        driver.decode([row])
        found, logits = expected(case, [*asked, *row.tokens], 3)
        for ours, theirs in zip(drafter.logits, logits, strict=True):
            assert theirs.std() > 0.5
            torch.testing.assert_close(ours[0], theirs, rtol=0, atol=5e-4)
        assert list(driver.record(row).drafts) == found


def test_a_prompt_in_one_token_can_be_drafted_from(build_case) -> None:
    """Nothing stands before its first column."""
    case, drafter = build_case("tied"), Recorded(cache_of())
    driver = checkpoint_driver(case.model, "eager", free(drafting(case, drafter, 2)))
    row = driver.begin(prompt([7]), max_new_tokens=8)
    driver.prefill(row)
    driver.decode([row])
    found, _ = expected(case, [7, *row.tokens], 2)
    assert list(driver.record(row).drafts) == found
