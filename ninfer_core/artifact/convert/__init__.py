"""Conversion of Hugging Face checkpoints to artifacts; architectures describe their parameters."""

from ninfer_core.artifact.convert.architecture import (
    ArchitectureConverter,
    ComponentSpec,
    FusionGroup,
    ModelDescription,
    ParameterRole,
    ParameterSpec,
    Place,
    SourceSpec,
)
from ninfer_core.artifact.convert.drafters import DraftConverter
from ninfer_core.artifact.convert.progress import ConvertProgress, ProgressEvent, no_progress
from ninfer_core.artifact.convert.recipe import (
    RECIPES,
    Recipe,
    RecipeBook,
    RecipeBuilder,
    Storage,
)
from ninfer_core.artifact.convert.report import ConversionReport
from ninfer_core.artifact.convert.run import ConvertOptions, convert

__all__ = [
    "RECIPES",
    "ArchitectureConverter",
    "ComponentSpec",
    "ConversionReport",
    "ConvertOptions",
    "ConvertProgress",
    "DraftConverter",
    "FusionGroup",
    "ModelDescription",
    "ParameterRole",
    "ParameterSpec",
    "Place",
    "ProgressEvent",
    "Recipe",
    "RecipeBook",
    "RecipeBuilder",
    "SourceSpec",
    "Storage",
    "convert",
    "no_progress",
]
