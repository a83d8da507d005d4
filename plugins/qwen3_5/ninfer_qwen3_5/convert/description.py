"""Describe a Qwen3.5 checkpoint to the converter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_core.artifact.convert import ComponentSpec, Place
from ninfer_core.artifact.fields import Node
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.convert.parameters import fusion_groups, mtp_parameters, text_parameters

TEXT_PREFIXES = ("model.language_model.", "model.")
"""Vision-language and text-only checkpoints; the longer one is tried first."""

VISION_PREFIX = "model.visual."
MTP_PREFIX = "mtp."
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Qwen35Description:
    """The model of one ``config.json``."""

    config: TextConfig
    components: tuple[ComponentSpec, ...]

    @property
    def architecture(self) -> str:
        return self.config.architecture

    def locate(self, tensor_name: str) -> Place | None:
        """``model.visual.*`` and ``mtp.*`` are components of their own; the rest is text."""
        if tensor_name == HEAD:
            tied = self.config.tie_word_embeddings
            return Place("text", HEAD, "the head is tied to the embedding" if tied else None)
        if tensor_name.startswith(VISION_PREFIX):
            return Place("vision", tensor_name.removeprefix(VISION_PREFIX))
        if tensor_name.startswith(MTP_PREFIX):
            return Place("mtp", tensor_name.removeprefix(MTP_PREFIX))
        for prefix in TEXT_PREFIXES:
            if tensor_name.startswith(prefix):
                return Place("text", tensor_name.removeprefix(prefix))
        return None


class Qwen35Converter:
    """Registered for the architecture's class names (see the plug-in's architecture entry)."""

    def describe(self, config: Mapping[str, Any]) -> Qwen35Description:
        """Raises ArtifactError for a bad key, a mixture of experts or a quantised checkpoint."""
        text = TextConfig.from_json(config)
        root = Node(dict(config), "")
        if text.moe is not None:
            root.need("architectures").fail(
                f"{text.architecture} (mixture of experts) is not converted by this version",
                "give a dense Qwen3.5 checkpoint",
            )
        quantised = root.find("quantization_config")
        if quantised is not None:
            quantised.fail("the checkpoint is quantised", "give the unquantised checkpoint")
        return Qwen35Description(text, tuple(_components(config, text)))


def _components(config: Mapping[str, Any], text: TextConfig) -> list[ComponentSpec]:
    parameters = text_parameters(text)
    components = [ComponentSpec("text", None, config, parameters, fusion_groups(parameters))]
    if text.mtp_num_hidden_layers == 1 and not text.mtp_use_dedicated_embeddings:
        parameters = mtp_parameters(text)
        groups = fusion_groups(parameters)
        components.append(ComponentSpec("mtp", "text", {"layers": 1}, parameters, groups))
    return components
