"""Convert a Hugging Face checkpoint directory to an artifact, whatever its architecture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ninfer_core.artifact.container import DEFAULT_PART_BYTES
from ninfer_core.artifact.convert.architecture import ArchitectureConverter, ModelDescription
from ninfer_core.artifact.convert.checkpoint import RESOURCES, TEMPLATE, Checkpoint, open_checkpoint
from ninfer_core.artifact.convert.drafters import (
    DraftConverter,
    Drafter,
    open_drafters,
    with_drafter,
)
from ninfer_core.artifact.convert.encode import ObjectEncoder
from ninfer_core.artifact.convert.matching import match_tensors
from ninfer_core.artifact.convert.plan import ConversionPlan, plan_conversion, resource_id
from ninfer_core.artifact.convert.progress import ConvertProgress, PhaseMeter, no_progress
from ninfer_core.artifact.convert.recipe import RECIPES, RecipeBook, table_storage
from ninfer_core.artifact.convert.report import ConversionReport
from ninfer_core.artifact.errors import ConversionError
from ninfer_core.artifact.formats import FormatRegistry, builtin_registry
from ninfer_core.artifact.model import Provenance
from ninfer_core.artifact.publish import refuse_existing
from ninfer_core.artifact.writer import ArtifactWriter

CONVERTER = "ninfer-convert 1"
"""Stands in the provenance; changes whenever equal inputs would give other bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """How to convert.

    ``head`` names the format of the vocabulary tables (embedding and head), None leaves it to the
    recipe. ``components`` None takes all that checkpoint and architecture have; ``drafters`` are
    directories of drafters to add, whatever ``components`` says. ``name`` None takes the
    directory's name; ``part_bytes`` bounds the payload of one file.
    """

    recipe: str = "bf16"
    head: str | None = None
    components: Sequence[str] | None = None
    drafters: Sequence[str | os.PathLike[str]] = ()
    name: str | None = None
    overwrite: bool = False
    allow_zero_rows: bool = False
    part_bytes: int = DEFAULT_PART_BYTES


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    architectures: Mapping[str, ArchitectureConverter],
    drafters: Mapping[str, DraftConverter] | None = None,
    options: ConvertOptions | None = None,
    progress: ConvertProgress = no_progress,
    formats: FormatRegistry | None = None,
    recipes: RecipeBook = RECIPES,
) -> ConversionReport:
    """Convert the checkpoint directory ``source`` to the artifact ``out``.

    ``architectures`` and ``drafters`` map class names of ``config.json`` to converters. Equal
    checkpoints and options give equal bytes. Raises `ArtifactError` naming the field at fault and
    the mend; nothing is left on disk then.
    """
    target, chosen = Path(out), options or ConvertOptions()
    try:
        _check_target(target, chosen)
        checkpoint = open_checkpoint(Path(source))
        converter = checkpoint.among(architectures, "config.json", "checkpoint")
        description = converter.describe(checkpoint.config)
        added = open_drafters(chosen.drafters, drafters or {}, description)
        job = _Job(
            checkpoint,
            added,
            _plan(checkpoint, description, added, chosen, recipes),
            description.architecture,
            _recipe_name(recipes, chosen),
            target,
            chosen,
        )
        return job.run(progress, formats or builtin_registry())
    except OSError as error:
        raise ConversionError(
            str(source), f"cannot be read ({error.strerror})", "check the directory and its files"
        ) from error


def _check_target(target: Path, options: ConvertOptions) -> None:
    if not target.parent.is_dir():
        raise ConversionError(str(target.parent), "is no directory", "create it first")
    if target.is_dir():
        raise ConversionError(str(target), "is a directory", "name a file")
    if not options.overwrite:
        refuse_existing([target])


def _plan(
    checkpoint: Checkpoint,
    description: ModelDescription,
    drafters: Sequence[Drafter],
    options: ConvertOptions,
    recipes: RecipeBook,
) -> ConversionPlan:
    recipe = recipes.get(options.recipe)
    tables = None if options.head is None else table_storage(options.head)
    match = match_tensors(description, checkpoint.tensors, options.components)
    for drafter in drafters:
        match = with_drafter(match, drafter)
    return plan_conversion(match, recipe, tables)


def _recipe_name(recipes: RecipeBook, options: ConvertOptions) -> str:
    name = recipes.get(options.recipe).name
    return name if options.head is None else f"{name}, head {table_storage(options.head).format}"


@dataclass(frozen=True, slots=True)
class _Job:
    checkpoint: Checkpoint
    drafters: Sequence[Drafter]
    plan: ConversionPlan
    architecture: str
    recipe: str
    target: Path
    options: ConvertOptions

    def run(self, progress: ConvertProgress, formats: FormatRegistry) -> ConversionReport:
        options = self.options
        draft = self.plan.draft(self._name(), self.checkpoint.resources, self._provenance(progress))
        writer = ArtifactWriter(
            self.target,
            draft,
            formats=formats,
            overwrite=options.overwrite,
            part_bytes=options.part_bytes,
        )
        with writer:
            total = sum(entry.source_bytes for entry in self.plan.objects)
            meter = PhaseMeter("convert", total, progress)
            encoder = ObjectEncoder(writer, formats, meter, allow_zero_rows=options.allow_zero_rows)
            worst = max(encoder.encode(e).rms_relative_error for e in self.plan.objects)
            self._write_resources(writer)
            PhaseMeter("publish", 1, progress)(self.target.name, 0)
            identity = writer.publish()
            PhaseMeter("publish", 1, progress)(self.target.name, 1)
            return self._report(identity, writer, worst)

    def _name(self) -> str:
        return self.options.name or self.checkpoint.directory.resolve().name

    def _provenance(self, progress: ConvertProgress) -> Provenance:
        opened = (self.checkpoint, *(drafter.checkpoint for drafter in self.drafters))
        total = sum(path.stat().st_size for each in opened for path in each.source_files)
        meter = PhaseMeter("hash", total, progress)
        sources = [*self.checkpoint.hash_sources(meter)]
        for drafter in self.drafters:
            sources += drafter.hash_sources(meter)
        return Provenance(CONVERTER, self.recipe, tuple(sources))

    def _write_resources(self, writer: ArtifactWriter) -> None:
        for name, data in self.checkpoint.resources.items():
            writer.write(resource_id(name), 0, data)
            writer.finish(resource_id(name))

    def _report(self, identity: str, writer: ArtifactWriter, worst: float) -> ConversionReport:
        match, resources = self.plan.match, self.checkpoint.resources
        absent = [name for name in (*RESOURCES, TEMPLATE) if name not in resources]
        return ConversionReport(
            path=str(self.target),
            artifact_id=identity,
            name=self._name(),
            architecture=self.architecture,
            recipe=self.recipe,
            components=tuple(component.name for component in match.components),
            tensors=len(self.plan.objects),
            bytes=writer.file_bytes,
            files=writer.file_count,
            resources=tuple(resources),
            not_carried=match.not_carried,
            ignored=match.ignored,
            notes=(*match.notes, *(f"{name}: not in the checkpoint" for name in absent)),
            max_rms_relative_error=worst,
        )
