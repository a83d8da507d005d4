"""Drafters of directories of their own, added to a target's artifact: bit for bit, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from ninfer_core.artifact import ArtifactError, Binder, open_artifact, verify
from ninfer_core.artifact.convert import ConversionReport, ConvertOptions, convert
from ninfer_core.conversion import converters, draft_converters
from ninfer_core.plugins import load_plugins
from ninfer_gateway_cli.commands import convert_app, inspect_app, verify_app
from tests.convert.conftest import Checkpoint
from tests.convert.drafters import DrafterDirectory, tiny_shapes


@pytest.fixture
def drafter(tmp_path: Path) -> Callable[..., DrafterDirectory]:
    def make(name: str = "drafter", second: bool = False) -> DrafterDirectory:
        return DrafterDirectory(tmp_path / name, second)

    return make


def converted(source: Path, out: Path, *drafters: Path, **options: Any) -> ConversionReport:
    """As `ninfer convert`: no plug-in was named."""
    host = load_plugins()
    return convert(
        source,
        out,
        architectures=converters(host),
        drafters=draft_converters(host),
        options=ConvertOptions(drafters=drafters, overwrite=True, **options),
    )


def refusal(source: Path, out: Path, *drafters: Path) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        converted(source, out, *drafters)
    assert list(out.parent.iterdir()) == []
    assert caught.value.hint
    return caught.value


def test_both_kinds_are_carried_bit_for_bit(saved, drafter, out: Path) -> None:
    first, second = drafter("first"), drafter("second", second=True)
    report = converted(saved("untied"), out, first.write(), second.write())
    assert report.components == ("text", "dflash", "dflash2")
    with open_artifact(out) as artifact:
        assert verify(artifact).problems == ()
        binder = Binder(artifact, ("dflash", "dflash2"))
        for component, made in (("dflash", first), ("dflash2", second)):
            assert artifact.component(component).target == "text"
            assert artifact.component(component).config == made.config
            for name, value in made.tensors.items():
                found = binder.tensor(f"{component}.{name}", tuple(value.shape)).to_torch()
                assert torch.equal(found, value), name
        binder.finish()
    assert len(first.tensors) == len(tiny_shapes()) == 3 + 2 * 11
    assert len(second.tensors) == len(tiny_shapes(second=True)) == 3 + 2 * 15 + 3


def test_the_target_is_the_same_with_and_without(saved, drafter, out: Path) -> None:
    converted(saved("tied"), out.with_name("plain.ninfer"))
    converted(saved("tied"), out, drafter().write())
    with open_artifact(out) as whole, open_artifact(out.with_name("plain.ninfer")) as plain:
        names = {entry.id for entry in plain.directory.objects}
        for name in names:
            assert whole.object_bytes(name) == plain.object_bytes(name)
        added = {entry.id for entry in whole.directory.objects} - names
        assert len(added) == 3 + 2 * 8
        assert all(name.startswith("dflash.") for name in added)


def test_the_target_alone_loads_without_a_byte_of_the_drafter(saved, drafter, out: Path) -> None:
    converted(saved("untied"), out, drafter().write())
    with open_artifact(out) as artifact:
        parts = {
            name: {part.object for b in artifact.bindings(name) for part in b.parts}
            for name in ("text", "dflash")
        }
    assert not parts["text"] & parts["dflash"]


def test_sources_of_both_are_in_the_provenance(saved, drafter, out: Path) -> None:
    converted(saved("untied"), out, drafter().write())
    with open_artifact(out) as artifact:
        names = [source.name for source in artifact.directory.provenance.sources]
    assert names == [
        "config.json",
        "model.safetensors",
        "dflash/config.json",
        "dflash/model.safetensors",
    ]


@pytest.mark.parametrize("recipe", ["fp32", "fp8", "q4"])
def test_recipes_store_a_drafter_as_they_store_the_target(saved, drafter, out, recipe) -> None:
    converted(saved("untied"), out, drafter(second=True).write(), recipe=recipe)
    kinds = {"fp32": "fp32", "fp8": "fp8_e4m3fn_row_bf16", "q4": "q4_g64_fp16"}
    with open_artifact(out) as artifact:
        assert verify(artifact).problems == ()
        objects = {entry.id: entry for entry in artifact.directory.objects}
        matrix = objects["dflash2.layers.0.self_attn.qkv_proj.weight"]
        assert matrix.format == kinds[recipe]
        assert matrix.shape == (128 + 64 + 64, 64)
        plain = "fp32" if recipe == "fp32" else "bf16"
        for name in (
            "candidate_selector.predecessor_codebook",
            "layers.1.mlp_conv.base_kernel",
            "norm.weight",
        ):
            assert objects[f"dflash2.{name}"].format == plain
        uses = {
            use.input
            for use in artifact.directory.uses
            if use.parameter == "dflash2.layers.0.self_attn.v_proj.weight"
        }
    assert uses == {"mixer_input", "draft_context"}


def test_zero_rows_of_codebooks_are_no_fault(saved, drafter, out: Path) -> None:
    made = drafter(second=True)
    made.tensors["candidate_selector.successor_codebook"][400:] = 0
    made.tensors["layers.0.mlp_conv.base_kernel"][:, 1] = 0
    report = converted(saved("untied"), out, made.write())
    assert "dflash2" in report.components


def test_equal_copies_of_tables_are_left_out(checkpoint, drafter, out: Path) -> None:
    source, made = checkpoint("untied"), drafter()
    own = source.tensors
    made.tensors["lm_head.weight"] = own["lm_head.weight"].clone()
    made.tensors["embed_tokens.weight"] = own["model.embed_tokens.weight"].clone()
    report = converted(source.path, out, made.write())
    assert set(report.ignored) == {"dflash/lm_head.weight", "dflash/embed_tokens.weight"}
    assert any("lm_head.weight is the target's own" in note for note in report.notes)


def test_a_tied_target_lends_its_embedding_as_the_head(checkpoint, drafter, out: Path) -> None:
    source, made = checkpoint("tied"), drafter()
    made.tensors["lm_head.weight"] = source.tensors["model.embed_tokens.weight"].clone()
    assert converted(source.path, out, made.write()).ignored == ("dflash/lm_head.weight",)


def _own_head(source: Checkpoint, made: DrafterDirectory) -> None:
    made.tensors["lm_head.weight"] = source.tensors["lm_head.weight"] + 1


def _small_head(source: Checkpoint, made: DrafterDirectory) -> None:
    made.tensors["lm_head.weight"] = source.tensors["lm_head.weight"][:128].clone()


def _extra(_: Checkpoint, made: DrafterDirectory) -> None:
    made.tensors["layers.2.input_layernorm.weight"] = torch.ones(64)


def _prefixed(_: Checkpoint, made: DrafterDirectory) -> None:
    made.tensors = {f"model.{name}": value for name, value in made.tensors.items()}


def _missing(_: Checkpoint, made: DrafterDirectory) -> None:
    del made.tensors["layers.1.self_attn.k_norm.weight"]


def _misshapen(_: Checkpoint, made: DrafterDirectory) -> None:
    made.tensors["fc.weight"] = torch.randn(64, 192)


def _shortlist(_: Checkpoint, made: DrafterDirectory) -> None:
    made.tensors["d2t"] = torch.arange(512)


def _membership(_: Checkpoint, made: DrafterDirectory) -> None:
    made.tensors["t2d"] = torch.ones(512, dtype=torch.bool)


def _mask_file(_: Checkpoint, made: DrafterDirectory) -> None:
    torch.save(torch.ones(64), made.path / "mask_embedding.pt")


def _not_finite(_: Checkpoint, made: DrafterDirectory) -> None:
    made.tensors["fc.weight"][3, 4] = torch.inf


def _another_class(_: Checkpoint, made: DrafterDirectory) -> None:
    made.config["architectures"] = ["LlamaForCausalLMEagle3"]


def _another_target(_: Checkpoint, made: DrafterDirectory) -> None:
    made.config["num_target_layers"] = 12


@pytest.mark.parametrize(
    ("spoil", "field", "problem"),
    [
        (_own_head, "lm_head.weight", "is not the target's text.lm_head.weight"),
        (_small_head, "lm_head.weight", "is not the target's text.lm_head.weight"),
        (_extra, "layers.2.input_layernorm.weight", "is no tensor of this architecture"),
        (_prefixed, "fc.weight", "is missing, and so are 24 others"),
        (_missing, "layers.1.self_attn.k_norm.weight", "of component 'dflash' is missing"),
        (_misshapen, "fc.weight", "has shape [64, 192], config.json asks for [64, 128]"),
        (_shortlist, "d2t", "maps a draft vocabulary of its own"),
        (_membership, "t2d", "maps a draft vocabulary of its own"),
        (_mask_file, "mask_embedding.pt", "would not be read"),
        (_not_finite, "fc.weight", "holds NaN or Inf"),
        (_another_class, "config.json.architectures", "known are DFlash"),
        (_another_target, "num_target_layers", "12, the target has 4"),
    ],
)
def test_refused_by_name(checkpoint, drafter, out: Path, spoil, field, problem) -> None:
    source, made = checkpoint("untied"), drafter()
    spoil(source, made)
    error = refusal(source.path, out, made.write())
    assert error.field.endswith(field)
    assert problem in error.problem


def test_the_second_generation_named_as_the_first_is_refused(saved, drafter, out: Path) -> None:
    made = drafter(second=True)
    made.config["architectures"] = ["DFlashDraftModel"]
    assert "belongs to DFlash2DraftModel" in refusal(saved("untied"), out, made.write()).problem


def test_two_of_one_kind_are_refused(saved, drafter, out: Path) -> None:
    error = refusal(saved("untied"), out, drafter("a").write(), drafter("b").write())
    assert "is a dflash drafter, as" in error.problem


def test_a_target_directory_is_no_drafter(saved, out: Path) -> None:
    assert "is unknown; known are" in refusal(saved("untied"), out, saved("untied")).problem


def test_quantising_is_reported_by_parameter(saved, drafter, out: Path) -> None:
    made = drafter()
    made.tensors["layers.0.mlp.up_proj.weight"][:] = 0
    error = refusal(saved("untied"), out, made.write())
    assert error.field == "dflash.layers.0.mlp.up_proj.weight"
    assert "rows are all zero" in error.problem


def test_report_is_plain_json(saved, drafter, out: Path) -> None:
    report = converted(saved("untied"), out, drafter().write())
    assert json.loads(json.dumps(report.to_json()))["components"] == ["text", "dflash"]


def test_the_commands_add_and_show_drafters(saved, drafter, out: Path) -> None:
    """No plug-in is named: asking for a drafter is naming it."""
    given = [drafter("first").write(), drafter("second", second=True).write()]
    flags = [flag for path in given for flag in ("--drafter", str(path))]
    runner, host = CliRunner(), load_plugins()
    done = runner.invoke(convert_app, [str(saved("tied")), "-o", str(out), *flags], obj=host)
    assert done.exit_code == 0, done.output
    assert "text, dflash, dflash2; " in done.output
    shown = runner.invoke(inspect_app, [str(out)], obj=load_plugins())
    assert "component  dflash for text: " in shown.output
    assert "component  dflash2 for text: " in shown.output
    checked = runner.invoke(verify_app, [str(out)], obj=load_plugins())
    assert checked.exit_code == 0


def test_the_command_names_the_key_that_is_refused(saved, drafter, out: Path) -> None:
    made = drafter()
    made.config["dflash_config"]["surprise"] = 1
    flags = [str(saved("tied")), "-o", str(out), "--drafter", str(made.write())]
    done = CliRunner().invoke(convert_app, flags, obj=load_plugins())
    assert done.exit_code == 2
    assert "dflash_config.surprise: unknown key" in done.output
    assert not out.exists()
