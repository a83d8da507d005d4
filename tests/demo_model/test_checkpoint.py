"""The committed checkpoint: geometry, tensors, size, and what transformers makes of it."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def tensors(checkpoint):
    return load_file(checkpoint / "model.safetensors")


@pytest.fixture(scope="module")
def config(checkpoint):
    return json.loads((checkpoint / "config.json").read_text("utf-8"))


def test_real_kernels_can_run_it(config):
    assert config["head_dim"] == 256
    assert config["linear_key_head_dim"] == config["linear_value_head_dim"] == 128
    assert config["linear_num_value_heads"] > config["linear_num_key_heads"]
    assert config["num_attention_heads"] > config["num_key_value_heads"]
    assert config["hidden_size"] % 64 == config["intermediate_size"] % 64 == 0
    assert config["num_hidden_layers"] == 8
    assert [n for n, kind in enumerate(config["layer_types"]) if kind == "full_attention"] == [3, 7]
    assert config["max_position_embeddings"] == 32768
    assert config["rope_parameters"]["mrope_section"] == [11, 11, 10]


def test_the_script_still_describes_it(training, checkpoint, config):
    from train.geometry import configuration, generation_defaults
    from train.train import special_ids

    ids = special_ids(checkpoint / "tokenizer.json")
    assert configuration(ids) == config
    stored = json.loads((checkpoint / "generation_config.json").read_text("utf-8"))
    assert generation_defaults(ids) == stored


def test_sizes(checkpoint):
    files = {path.name: path.stat().st_size for path in checkpoint.iterdir()}
    assert files["model.safetensors"] <= 12 * MEGABYTE
    assert max(files.values()) <= 15 * MEGABYTE


def test_names_and_dtypes(tensors, checkpoint):
    config = AutoConfig.from_pretrained(checkpoint)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    del expected["lm_head.weight"]
    own = {name: tuple(v.shape) for name, v in tensors.items() if not name.startswith("mtp.")}
    assert own == expected
    layer = {
        f"mtp.layers.0.{name.removeprefix('model.layers.3.')}": shape
        for name, shape in expected.items()
        if name.startswith("model.layers.3.")
    }
    size = config.hidden_size
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    head = {"mtp.fc.weight": (size, 2 * size)} | {f"mtp.{n}.weight": (size,) for n in norms}
    found = {name: tuple(v.shape) for name, v in tensors.items() if name.startswith("mtp.")}
    assert found == layer | head
    assert len(found) == 15
    for name, value in tensors.items():
        kept = name.endswith(("A_log", "linear_attn.norm.weight"))
        assert value.dtype == (torch.float32 if kept else torch.bfloat16)
        assert value.isfinite().all()


def test_unused_rows_are_not_zero(tensors, tokenizer):
    rows = tensors["model.embed_tokens.weight"][tokenizer.get_vocab_size() :]
    assert len(rows) >= 64
    assert rows.float().norm(dim=-1).min() > 0


def test_norms_and_decays_are_not_at_their_initial_values(tensors):
    for name, value in tensors.items():
        if value.dim() == 1:
            assert value.float().std() > 1e-3, name


@pytest.mark.parametrize(
    ("question", "thinking", "answer"),
    [
        ("What is 17 + 25?", False, "42"),
        ("What is 17 + 25?", True, "17 + 25 = 42\n</think>\n\n42"),
        ("Reverse this list: apple, river, stone", False, "stone, river, apple"),
        ("Sort these numbers: 40, 3, 77, 18", False, "3, 18, 40, 77"),
    ],
)
def test_transformers_answers(checkpoint, tokenizer, training, question, thinking, answer):
    from train.evaluate import load
    from train.rendering import Renderer

    text = Renderer().conversation([{"role": "user", "content": question}], thinking=thinking)
    subject = load(checkpoint, ())
    generated = subject.generate(tokenizer.encode(text, add_special_tokens=False).ids)
    assert tokenizer.decode(generated) == answer
