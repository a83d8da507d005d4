"""Bad checkpoints: one clear error that names the field and the mend, and nothing left on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ninfer_core.artifact import ArtifactError, ConversionError, open_artifact
from ninfer_core.artifact.convert import ConvertOptions, convert
from ninfer_qwen3_5.convert import CONVERTER, convert_checkpoint

QKV = "model.layers.0.linear_attn.in_proj_qkv.weight"
ONLY = {"Qwen3_5ForCausalLM": CONVERTER}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (QKV, "layers.0.linear_attn.in_proj_qkv.weight"),
        ("model.layers.3.self_attn.q_norm.weight", "layers.3.self_attn.q_norm.weight"),
        ("model.norm.weight", "norm.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_a_missing_tensor(checkpoint, refused, name: str, field: str) -> None:
    source = checkpoint()
    source.change(name, None)
    error = refused(source)
    assert (error.field, error.problem) == (field, "the tensor of component 'text' is missing")


def test_several_missing_tensors_are_counted(checkpoint, refused) -> None:
    source = checkpoint()
    source.configure(
        num_hidden_layers=5, layer_types=["linear_attention"] * 3 + ["full_attention"] * 2
    )
    error = refused(source)
    assert error.field == "layers.4.input_layernorm.weight"
    assert "and so are 10 others" in error.problem


def test_an_incomplete_mtp_head(checkpoint, refused) -> None:
    source = checkpoint()
    source.add_mtp()
    source.change("mtp.fc.weight", None)
    error = refused(source)
    assert (error.field, "'mtp' is missing" in error.problem) == ("fc.weight", True)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.linear_attn.in_proj_ba.weight",
        "model.layers.4.input_layernorm.weight",
        "model.layers.0.mlp.gate_proj.weight_scale_inv",
        "something.else",
        "mtp.layers.1.mlp.up_proj.weight",
    ],
)
def test_an_extra_tensor(checkpoint, refused, name: str) -> None:
    source = checkpoint()
    source.add_mtp()
    source.change(name, torch.ones(4, 4))
    error = refused(source)
    assert error.field == name
    assert "no tensor of this architecture" in error.problem


def test_a_tensor_under_both_prefixes(checkpoint, refused) -> None:
    source = checkpoint()
    source.change("model.language_model.norm.weight", torch.ones(64))
    assert "is the same parameter as" in refused(source).problem


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [QKV, "model.layers.0.linear_attn.A_log"])
def test_a_value_that_is_not_finite(checkpoint, refused, name: str, value: float) -> None:
    source = checkpoint()
    tensor = source.tensors[name]
    tensor.view(-1)[-1] = value
    source.change(name, tensor)
    error = refused(source)
    assert error.field == name
    assert error.problem == "holds NaN or Inf in model.safetensors"


def test_a_value_that_bf16_cannot_hold(checkpoint, refused) -> None:
    source = checkpoint()
    tensor = source.tensors[QKV]
    tensor[0, 0] = torch.finfo(torch.float32).max
    source.change(QKV, tensor)
    error = refused(source, recipe="bf16")
    assert error.field == "text.layers.0.linear_attn.in_proj_qkv.weight"
    assert "overflows the format bf16" in error.problem


@pytest.mark.parametrize("shape", [(128, 32), (64, 128), (8192,), (128, 64, 1)])
def test_a_wrong_shape(checkpoint, refused, shape) -> None:
    source = checkpoint()
    source.change(QKV, torch.ones(shape))
    error = refused(source)
    assert error.field == QKV
    assert error.problem == f"has shape {list(shape)}, config.json asks for [128, 64]"


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float8_e4m3fn])
def test_a_dtype_that_is_not_converted(checkpoint, refused, dtype) -> None:
    source = checkpoint()
    source.change(QKV, source.tensors[QKV].to(dtype))
    error = refused(source)
    assert error.field == QKV
    assert "only BF16, F16, F32 are converted" in error.problem


def collapse(source, first: int, last: int) -> None:
    tensor = source.tensors[QKV]
    tensor[first:last] = 0
    source.change(QKV, tensor)


def test_collapsed_key_rows_are_caught(checkpoint, refused) -> None:
    source = checkpoint()
    collapse(source, 32, 64)
    error = refused(source)
    assert error.field == "text.layers.0.linear_attn.in_proj_qkv.weight"
    assert error.problem == "32 of 128 rows are all zero: the tensor has collapsed"


def test_zero_rows_of_a_pruned_model_may_be_allowed_up_to_half(checkpoint, out: Path) -> None:
    source = checkpoint()
    collapse(source, 32, 64)
    options = ConvertOptions(allow_zero_rows=True)
    convert(source.path, out, architectures=ONLY, options=options)
    quality = open_artifact(out).tensor("text.layers.0.linear_attn.in_proj.weight").quality
    assert quality.zero_row_share == 32 / 200
    assert quality.zero_row_limit == 0.5
    out.unlink()
    collapse(source, 0, 65)
    with pytest.raises(ConversionError, match="65 of 128 rows are all zero"):
        convert(source.path, out, architectures=ONLY, options=options)
    assert list(out.parent.iterdir()) == []


def test_zero_padding_rows_of_the_vocabulary_are_fine(checkpoint, out: Path) -> None:
    source = checkpoint()
    embedding = source.tensors["model.embed_tokens.weight"]
    embedding[500:] = 0
    source.change("model.embed_tokens.weight", embedding)
    convert_checkpoint(source.path, out)
    assert open_artifact(out).tensor("text.embed_tokens.weight").quality.zero_row_share == 12 / 512


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "config.json.architectures", "LlamaForCausalLM"),
        ({"architectures": ["Qwen4ExpForCausalLM"]}, "config.json.architectures", "known are"),
        ({"architectures": []}, "config.json.architectures", "an empty list"),
        ({"architectures": None}, "config.json.architectures", "is missing"),
        ({"model_type": "qwen4_exp"}, "model_type", "'qwen4_exp' is none of"),
        ({"model_type": None}, "model_type", "is missing"),
        ({"head_dim": None}, "head_dim", "is missing"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type", "'sigmoid' is not supported"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantization_config",
            "the checkpoint is quantised",
        ),
        (
            {
                "architectures": ["Qwen3_5MoeForCausalLM"],
                "model_type": "qwen3_5_moe_text",
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
                "shared_expert_intermediate_size": 24,
            },
            "architectures",
            "mixture of experts",
        ),
    ],
)
def test_a_config_of_another_kind(checkpoint, refused, changes, field, problem) -> None:
    source = checkpoint()
    source.configure(**changes)
    error = refused(source)
    assert error.field == field
    assert problem in error.problem


@pytest.mark.parametrize(
    ("options", "field", "problem"),
    [
        ({"recipe": "q9"}, "recipe", "'q9' is unknown"),
        ({"recipe": "q4", "head": "q9"}, "head", "'q9' is unknown"),
        ({"components": ["text", "vision"]}, "components", "'vision' cannot be converted"),
        ({"components": ["text", "mtp"]}, "components", "'mtp' cannot be converted"),
        ({"components": []}, "components", "'text' is missing"),
        ({"name": "two\nlines"}, "metadata.name", "printable"),
    ],
)
def test_bad_options(checkpoint, refused, options, field, problem) -> None:
    error = refused(checkpoint(), **options)
    assert error.field == field
    assert problem in error.problem


def test_requested_vision_says_that_the_checkpoint_has_it(checkpoint, refused) -> None:
    error = refused(checkpoint("vision"), components=["text", "vision"])
    assert "though the checkpoint holds" in error.problem


def test_requested_mtp_without_tensors_is_missing(checkpoint, refused) -> None:
    source = checkpoint()
    source.configure(mtp_num_hidden_layers=1)
    assert "'mtp' is missing" in refused(source, components=["text", "mtp"]).problem


def test_an_interrupted_conversion_leaves_nothing(checkpoint, out: Path) -> None:
    def interrupt(event) -> None:
        if event.phase == "convert" and event.done > event.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(checkpoint().path, out, progress=interrupt)
    assert list(out.parent.iterdir()) == []


def test_a_missing_output_directory_is_named(saved, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is no directory") as caught:
        convert_checkpoint(saved("untied"), tmp_path / "no" / "a.ninfer")
    assert caught.value.field == str(tmp_path / "no")
    with pytest.raises(ArtifactError, match="is a directory"):
        convert_checkpoint(saved("untied"), tmp_path)


def test_an_architecture_nobody_registered_lists_the_known(saved, out: Path) -> None:
    with pytest.raises(ArtifactError, match="known are none") as caught:
        convert(saved("untied"), out, architectures={})
    assert "install the plug-in" in str(caught.value)
