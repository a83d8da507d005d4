"""Random weights in a real geometry: sizes, formats, and a model of them that runs."""

from __future__ import annotations

import json
import math

import pytest
import torch

from ninfer_core import Engine
from ninfer_core.artifact import ArtifactError, open_artifact
from ninfer_core.artifact.formats.row_groups import decode_grouped
from ninfer_core.artifact.formats.row_scale import decode_row_scaled
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.cpu import open_device
from ninfer_core.errors import NinferError
from ninfer_core.ops.reference import OPS
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.convert.parameters import text_parameters
from ninfer_qwen3_5.geometry.artifact import Geometry, read_geometry, resolve, write_geometry
from ninfer_qwen3_5.geometry.source import GeometrySource, geometry_bytes
from ninfer_qwen3_5.geometry.table import SIZES, config_of
from ninfer_qwen3_5.geometry.vocabulary import tokenizer_json
from ninfer_qwen3_5.load.device_residence import DeviceResidence, vector_bytes
from ninfer_qwen3_5.load.residence import HOST
from ninfer_qwen3_5.load.text import text_parameters as text_parameters_of

TINY = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    },
    "tie_word_embeddings": False,
}

RELEASED = {
    "0.8b": 752_393_024,
    "2b": 1_881_825_088,
    "4b": 4_205_751_296,
    "9b": 8_953_803_264,
    "27b": 26_895_998_464,
}
"""Parameters of the text part of the released checkpoints."""


@pytest.fixture
def geometry(tmp_path):
    """Writes the artifact of ``TINY`` with the given weights."""

    def write(recipe="bf16", tokens=300, **changes):
        path = tmp_path / f"{recipe}.ninfer"
        write_geometry(path, "tiny", {**TINY, **changes}, Geometry(recipe, seed=3), tokens)
        return path

    return write


def generated(path, **options):
    with Engine.open(path, EngineOptions(devices=("cpu",), max_context=128)) as engine:
        asked = GenerationOptions(
            sampling=SamplingParams(temperature=0.0), max_new_tokens=12, **options
        )
        return engine.submit(PromptInput(token_ids=[1, 299, 7, 80]), asked).result()


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_the_released_models(name):
    config = TextConfig.from_json(config_of(SIZES[name]))
    assert sum(math.prod(p.shape) for p in text_parameters(config)) == RELEASED[name]


@pytest.mark.parametrize("recipe", ["fp32", "bf16", "fp8", "q4"])
def test_a_geometry_answers_to_its_limit(geometry, recipe):
    result = generated(geometry(recipe), prompt_logprobs=0, logprobs=1)
    assert len(result.token_ids) == 12
    assert all(0 <= token < 300 for token in result.token_ids)
    scored = [row.logprob for row in (*result.logprobs, *result.prompt_logprobs[1:])]
    assert len(scored) == 12 + 3
    assert all(-20 < value < 0 for value in scored)


def test_equal_seeds_give_equal_answers(geometry):
    assert generated(geometry()).token_ids == generated(geometry()).token_ids


def test_activations_stay_near_one_over_many_layers(geometry):
    """Logits of weights with variance 1 / columns behind a norm are about standard normal."""
    path = geometry("fp32", num_hidden_layers=64)
    result = generated(path, logprobs=1)
    best = [row.logprob for row in result.logprobs]
    assert all(-8 < value < -0.5 for value in best)


def source(recipe, config):
    return GeometrySource(config, Geometry(recipe), HOST.take, torch.device("cpu"))


@pytest.mark.parametrize(
    ("recipe", "decode"),
    [
        ("fp32", lambda planes, columns: planes["weight"]),
        ("bf16", lambda planes, columns: planes["weight"].float()),
        ("fp8", lambda planes, columns: decode_row_scaled(planes["codes"], planes["scales"])),
        ("q4", lambda p, columns: decode_grouped(p["codes"], p["scales"], columns)),
    ],
)
@pytest.mark.parametrize("columns", [96, 201])
def test_matrices_have_mean_0_and_variance_1_over_columns(recipe, decode, columns):
    config = TextConfig.from_json({**TINY, "intermediate_size": columns})
    name = "mlp.down_proj.weight"
    matrix = source(recipe, config).matrix("text.layers.0.", {name: (4096, columns)}, "ffn_inner")
    values = decode(matrix.planes, columns)
    assert (matrix.rows, matrix.columns) == (4096, columns) == tuple(values.shape)
    assert values.isfinite().all()
    assert abs(float(values.mean())) < 4 * columns**-0.5 * values.numel() ** -0.5
    assert float(values.std()) == pytest.approx(columns**-0.5, rel=0.03)
    if recipe == "q4":
        assert not matrix.planes["scales"][:, -(-columns // 64) :].any()
        whole = decode_grouped(matrix.planes["codes"], matrix.planes["scales"], 256 // 2)
        assert columns > 128 or not whole[:, columns:].any()


def test_decay_stands_where_trained_models_have_it():
    config = TextConfig.from_json(TINY)
    made = source("bf16", config)
    rate = made.vector("text.layers.0.linear_attn.A_log", (1000,)).exp()
    step = torch.nn.functional.softplus(made.vector("text.layers.0.linear_attn.dt_bias", (1000,)))
    assert 1 <= rate.min() < 2 < 15 < rate.max() <= 16
    assert 0.00099 < step.min() < 0.0012 < 0.08 < step.max() < 0.1001


@pytest.mark.parametrize(
    ("recipe", "least"),
    [
        # Two tables 320 x 64; three delta nets (128 + 64 + 2 x 4) x 64 and 64 x 64; one attention
        # (2 x 128 + 2 x 64) x 64 and 64 x 128; four times 3 x 96 x 64.
        ("bf16", 2 * (2 * 20480 + 3 * (12800 + 4096) + 24576 + 8192 + 4 * 18432)),
        ("fp32", 4 * (2 * 20480 + 3 * (12800 + 4096) + 24576 + 8192 + 4 * 18432)),
    ],
)
def test_arena_bytes_by_formula(recipe, least):
    config = TextConfig.from_json(TINY)
    vectors = 4 * (9 * 64 + 3 * (128 * 4 + 2 * 4 + 16) + 2 * 32)
    asked = geometry_bytes(config, Geometry(recipe))
    tensors = 2 + 4 * 3 + 3 * 5 + 4 + 8 + 1 + 3 * 4 + 2 + 2
    assert least + vectors <= asked <= least + vectors + 512 * tensors


def test_matrices_fit_the_arena_that_was_planned():
    """27B in bf16: 53.8 GB and no more than a thousandth beside."""
    config = TextConfig.from_json(config_of(SIZES["27b"]))
    asked = geometry_bytes(config, Geometry("bf16"))
    assert 2 * RELEASED["27b"] < asked < 1.001 * 2 * RELEASED["27b"]
    assert geometry_bytes(config, Geometry("q4")) < 0.32 * asked


@pytest.mark.parametrize("recipe", ["bf16", "fp32", "fp8", "q4"])
@pytest.mark.parametrize("tied", [True, False])
def test_all_matrices_are_made_in_the_arena(recipe, tied):
    """What is left of it are the vectors, which lie beside it on the CPU, and alignment."""
    config = TextConfig.from_json({**TINY, "tie_word_embeddings": tied})
    residence = DeviceResidence(open_device(0), geometry_bytes(config, Geometry(recipe)))
    made = GeometrySource(config, Geometry(recipe), residence.take, torch.device("cpu"))
    text_parameters_of(made, config, OPS, residence)
    planes = 2 if recipe in ("fp8", "q4") else 1
    assert len(residence.arena.layout()) == planes * ((1 if tied else 2) + 4 * 4)
    assert residence.arena.free < vector_bytes(config) + 512 * 36 * 2


def test_every_id_has_text_and_none_ends(geometry):
    with Engine.open(geometry(), EngineOptions(devices=("cpu",), max_context=128)) as engine:
        texts = engine.token_bytes(range(300))
        assert len(set(texts)) == 300
        assert b"" not in texts
        assert engine.load_summary().details["frontend"]["stop_token_ids"] == []
        assert engine.detokenize(engine.tokenize("Grüße, 3 words")) == "Grüße, 3 words"


def test_the_cache_serves_a_size_again(tmp_path, monkeypatch):
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path))
    path = resolve("27b:q4")
    first = path.stat().st_mtime_ns
    assert resolve("27B:q4_g64_fp16") == path
    assert path.stat().st_mtime_ns == first
    assert path.stat().st_size < 6e6
    with open_artifact(path) as artifact:
        assert read_geometry(artifact) == Geometry("q4_g64_fp16", 0)
        assert artifact.name == "geometry-27b-q4_g64_fp16"


@pytest.mark.parametrize(
    ("argument", "said"),
    [("3b", "geometry '3b' is unknown.*0.8b, 2b, 4b, 9b, 27b"), ("9b:q5", "'q5' is unknown.*q4")],
)
def test_unknown_choices(tmp_path, monkeypatch, argument, said):
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path))
    with pytest.raises(NinferError, match=said):
        resolve(argument)


@pytest.mark.parametrize("tokens", [8, 321])
def test_vocabularies_that_cannot_be(geometry, tokens):
    with pytest.raises(NinferError, match=r"too small|do not fit"):
        geometry(tokens=tokens)


def test_vocabulary_entries_are_consecutive():
    vocabulary = json.loads(tokenizer_json(1000))["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(1000))


def test_random_weights_beside_stored_ones_are_refused(monkeypatch, geometry):
    with open_artifact(geometry()) as artifact:
        monkeypatch.setattr(type(artifact), "bindings", lambda self, component: iter("x"))
        with pytest.raises(ArtifactError, match="random weights, but there are others"):
            read_geometry(artifact)
