"""All weights of an instance: the text model's, and those of the draft backend that was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.contract.instance import BuildRequest
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.geometry.artifact import read_geometry
from ninfer_qwen3_5.geometry.source import GeometrySource, geometry_bytes
from ninfer_qwen3_5.load.device_residence import DeviceResidence, resident_bytes
from ninfer_qwen3_5.load.residence import HOST, Residence
from ninfer_qwen3_5.load.source import ArtifactSource
from ninfer_qwen3_5.load.text import TextLoader, load_text, text_parameters
from ninfer_qwen3_5.model.lending import LentParts
from ninfer_qwen3_5.model.parameters import TextParameters
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import Drafting

if TYPE_CHECKING:
    from ninfer_core.device.base import Device


class Weights:
    """Those that the artifact holds, or random ones where it describes only a geometry; in one
    block of the device's memory."""

    def __init__(self, request: BuildRequest, config: TextConfig, device: Device) -> None:
        self._request = request
        self._config = config
        self._geometry = read_geometry(request.artifact)
        self._drafts = None if request.draft_backend is None else request.draft_backend.component
        components = ("text",) if self._drafts is None else ("text", self._drafts)
        described = () if self._geometry is None else request.draft_parameters()
        size = (
            resident_bytes(request.artifact, config, components)
            if self._geometry is None
            else geometry_bytes(config, self._geometry, components, described)
        )
        on_cpu = device.facts.kind == "cpu"
        self._residence: Residence = HOST if on_cpu else DeviceResidence(device, size)
        self._random: GeometrySource | None = None
        if self._geometry is not None:
            self._random = GeometrySource(
                config,
                self._geometry,
                self._residence.take,
                device.torch_device,
                components,
                described,
            )

    def text(self) -> TextParameters:
        """Raises ArtifactError for a parameter that is missing, misshapen or left over."""
        request, config = self._request, self._config
        if self._random is None:
            return load_text(request.artifact, config, request.ops, self._residence)
        return text_parameters(self._random, config, request.ops, self._residence)

    def drafting(self, model: TextModel) -> Drafting | None:
        """The chosen backend, bound to ``model``. Raises as :meth:`text`."""
        request, backend = self._request, self._request.draft_backend
        if backend is None:
            return None
        source = self._random or ArtifactSource(request.artifact, backend.component)
        loader = TextLoader(source, self._config, request.ops, self._residence)
        name = backend.component
        known = name in request.artifact.component_names
        config = request.artifact.component(name).config if known else {}
        backend.bind(LentParts(model, loader, name, config))
        if isinstance(source, ArtifactSource):
            source.finish()
        features = request.features
        return Drafting(
            backend, features.draft_tokens, weights=loader.bytes, draws=features.draft_sampling
        )
