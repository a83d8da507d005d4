"""The training forms equal transformers': the delta rule, the convolution, the MTP head."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3_5ForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel
from transformers.models.qwen3_5 import modeling_qwen3_5 as oracle

TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("size", [8, 16, 40, 56, 64])
def test_unit_lower_inverse(training, size):
    from train.gdn import unit_lower_inverse

    generator = torch.Generator().manual_seed(size)
    strict = torch.rand(3, 2, size, size, generator=generator).tril(-1)
    expected = torch.linalg.inv(strict.double() + torch.eye(size, dtype=torch.double))
    torch.testing.assert_close(unit_lower_inverse(strict).double(), expected, rtol=0, atol=1e-3)
    exact = unit_lower_inverse(strict.double())
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", [1, 7, 64, 100, 150])
def test_delta_rule_and_its_gradients(training, length):
    from train.gdn import chunk_gated_delta_rule

    torch.manual_seed(length)
    q, k, v = (torch.randn(2, length, 2, 16) for _ in range(3))
    g, beta = -torch.rand(2, length, 2) * torch.tensor([0.05, 2.0]), torch.rand(2, length, 2)
    state = torch.randn(2, 2, 16, 16)
    found = []
    for rule in (oracle.torch_chunk_gated_delta_rule, chunk_gated_delta_rule):
        leaves = [t.clone().requires_grad_() for t in (q, k, v, g, beta)]
        out, final = rule(
            *leaves[:3],
            g=leaves[3],
            beta=leaves[4],
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        weight = torch.arange(out.numel()).reshape(out.shape).sin()
        grads = torch.autograd.grad((out * weight).sum() + final.sum(), leaves)
        found.append((out, final, *grads))
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


def test_convolution(training):
    from train.gdn import causal_conv1d

    torch.manual_seed(0)
    x, weight = torch.randn(2, 24, 9), torch.randn(24, 4)
    expected = oracle.causal_conv1d_fn(x, weight, None, activation="silu")
    torch.testing.assert_close(causal_conv1d(x, weight, None, activation="silu"), expected)


def test_the_patched_model_equals_the_plain_one(training, checkpoint, monkeypatch):
    from train.gdn import causal_conv1d, chunk_gated_delta_rule

    model = Qwen3_5ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    torch.manual_seed(1)
    ids = torch.randint(0, 2400, (2, 150))
    with torch.no_grad():
        expected = model(ids).logits
        monkeypatch.setattr(oracle, "torch_chunk_gated_delta_rule", chunk_gated_delta_rule)
        monkeypatch.setattr(oracle, "causal_conv1d_fn", causal_conv1d)
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=3 * TOLERANCE)


def test_mtp_head_equals_the_generic_module(training, checkpoint):
    from safetensors.torch import load_file
    from train.mtp import MtpHead, rotary_of

    model = Qwen3_5ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model.config.num_mtp_layers, model.config.mtp_layer_types = 1, ["full_attention"]
    generic = MtpModel.from_pretrained(model).float()
    stored = load_file(checkpoint / "model.safetensors")
    named = {k.removeprefix("mtp."): v.float() for k, v in stored.items() if k.startswith("mtp.")}
    head = MtpHead(model.config)
    head.load_state_dict(named)
    torch.manual_seed(2)
    ids = torch.randint(0, 2400, (2, 40))
    shifted = ids.roll(-1, 1)
    positions = torch.arange(1, 41).expand(2, 40)
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state
        cache = MtpCache(config=generic.config)
        expected = generic.forward_layer(0, hidden, positions, cache, input_ids=shifted)
        ours = head(model.model.embed_tokens(shifted), hidden, rotary_of(model, ids))
    torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE)
