"""The semantic binder: logical parameters and their Uses to views of stored tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.artifact.buffers import tensor_view
from ninfer_core.artifact.encoded import EncodedMatrix, encoded
from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.formats import (
    FormatRegistry,
    Plane,
    WeightFormat,
)
from ninfer_core.artifact.model import ActivationPolicy, Binding, TensorObject, Use
from ninfer_core.artifact.reader import Artifact
from ninfer_core.artifact.validate import check_storage

if TYPE_CHECKING:
    import torch

_CONVERT_AGAIN = "convert the checkpoint again: the artifact and its configuration disagree"


@dataclass(frozen=True, slots=True)
class View:
    """Logical elements ``[first, first + count)`` of a stored tensor, with the parent's geometry.

    ``storage`` holds all bytes of ``parent`` (read-only, zero-copy).
    """

    parent: TensorObject
    first: int
    count: int
    storage: memoryview
    format: WeightFormat

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The parent's planes; offsets count from the start of ``storage``."""
        return self.format.planes(self.parent.shape, self.parent.layout)

    @property
    def rows(self) -> tuple[int, int] | None:
        """The range of the parent's rows (last axis), or None where the view cuts through one."""
        width = self.parent.shape[-1]
        if self.first % width or self.count % width:
            return None
        return self.first // width, (self.first + self.count) // width

    def flat(self) -> torch.Tensor:
        """The elements in C order: in place for plain formats, else decoded to float32."""
        import torch

        if self.format.torch_dtype is not None:
            dtype: torch.dtype = getattr(torch, self.format.torch_dtype)
            return tensor_view(self.storage, dtype, self.first, self.count)
        width = self.parent.shape[-1]
        rows = self.first // width, -(-(self.first + self.count) // width)
        decoded = self.format.decode(self.storage, self.parent.shape, self.parent.layout, rows)
        skipped = self.first - rows[0] * width
        return decoded.reshape(-1)[skipped : skipped + self.count]


@dataclass(frozen=True, slots=True)
class BoundTensor:
    """A logical parameter of ``shape`` as the ordered concatenation of ``views``.

    ``activation`` is what the consumer may do with its input: the policy of the requested use, or
    the intersection of several. ``uses`` is empty for parameters asked for without a use.
    """

    parameter: str
    shape: tuple[int, ...]
    views: tuple[View, ...]
    uses: tuple[Use, ...] = ()

    @property
    def activation(self) -> ActivationPolicy:
        return ActivationPolicy.meet(use.activation for use in self.uses)

    @property
    def key(self) -> tuple[tuple[str, int, int], ...]:
        """Equal keys mean the same stored elements: keep them resident once."""
        return tuple((view.parent.id, view.first, view.count) for view in self.views)

    @property
    def contiguous(self) -> bool:
        """Whether all elements stand in one run of one stored tensor."""
        return len(self.views) == 1

    def to_torch(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The parameter as a CPU tensor of ``shape``; ``dtype`` None keeps the stored one.

        Shares the file's memory (do not write to it) where the tensor is contiguous, its format
        plain and no cast asked; packed formats decode to float32.
        """
        import torch

        parts = [view.flat() for view in self.views]
        values = parts[0] if len(parts) == 1 else torch.cat(parts)
        return values.reshape(self.shape).to(dtype or values.dtype)

    def encoded(self) -> EncodedMatrix:
        """The parameter as stored, plane by plane, for ops that read its format.

        Raises `ArtifactError` where its views have several formats or cut through packed rows.
        """
        return encoded(self)


class Binder:
    """Hands out the parameters of some components of an artifact and notes which were taken.

    Every error is an `ArtifactError` whose field is the logical parameter.
    """

    def __init__(
        self,
        artifact: Artifact,
        components: Iterable[str] = ("text",),
        formats: FormatRegistry | None = None,
    ) -> None:
        self._artifact = artifact
        self._formats = formats or artifact.formats
        self._components = tuple(artifact.component(name).name for name in components)
        self._taken: set[str] = set()

    def has(self, parameter: str) -> bool:
        return self._artifact.binding(parameter) is not None

    def tensor(
        self, parameter: str, shape: Sequence[int], *, use: str | None = None
    ) -> BoundTensor:
        """The parameter of exactly ``shape``; ``use`` names the activation input it will meet.

        Raises `ArtifactError` when the parameter or the use is missing, the shape is another, or
        the stored format is unknown.
        """
        binding = self._binding(parameter, tuple(shape))
        uses = () if use is None else (self._use(parameter, use),)
        self._taken.add(parameter)
        return BoundTensor(parameter, tuple(shape), self._views(binding), uses)

    def stacked(
        self, parameters: Sequence[tuple[str, Sequence[int]]], *, use: str | None = None
    ) -> BoundTensor:
        """Several (parameter, shape) as one along the first axis, for a fused call.

        One zero-copy view where the converter stored them side by side; the activation policy is
        the intersection of all uses.
        """
        bound = [self.tensor(parameter, shape, use=use) for parameter, shape in parameters]
        tails = {tensor.shape[1:] for tensor in bound}
        names = " + ".join(tensor.parameter for tensor in bound)
        if len(tails) != 1:
            raise ArtifactError(names, "have different row shapes", "bind them one by one")
        shape = (sum(tensor.shape[0] for tensor in bound), *tails.pop())
        views = _joined([view for tensor in bound for view in tensor.views])
        return BoundTensor(names, shape, views, tuple(u for tensor in bound for u in tensor.uses))

    def finish(self) -> None:
        """Raise `ArtifactError` if a parameter of the chosen components was never asked for."""
        left = [
            binding.parameter
            for component in self._components
            for binding in self._artifact.bindings(component)
            if binding.parameter not in self._taken
        ]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise ArtifactError(
                left[0] + more,
                "stands in the artifact, but the model has no such parameter",
                _CONVERT_AGAIN,
            )

    def _binding(self, parameter: str, shape: tuple[int, ...]) -> Binding:
        binding = self._artifact.binding(parameter)
        if binding is None:
            raise ArtifactError(
                parameter, f"is missing in {self._artifact.path.name}", _CONVERT_AGAIN
            )
        if binding.shape != shape:
            raise ArtifactError(
                parameter,
                f"has shape {list(binding.shape)}, the model needs {list(shape)}",
                _CONVERT_AGAIN,
            )
        return binding

    def _use(self, parameter: str, input_name: str) -> Use:
        use = self._artifact.use(parameter, input_name)
        if use is None:
            raise ArtifactError(
                parameter, f"declares no use with input {input_name!r}", _CONVERT_AGAIN
            )
        return use

    def _views(self, binding: Binding) -> tuple[View, ...]:
        views = []
        for part in binding.parts:
            parent = self._artifact.tensor(part.object)
            weight_format = self._formats.get(parent.format, binding.parameter)
            check_storage(binding.parameter, parent, weight_format)
            storage = self._artifact.intact_bytes(parent.id)
            views.append(View(parent, part.first, part.count, storage, weight_format))
        return _joined(views)


def _joined(views: Sequence[View]) -> tuple[View, ...]:
    """Adjacent views of one parent become one."""
    joined: list[View] = []
    for view in views:
        last = joined[-1] if joined else None
        adjacent = last is not None and last.first + last.count == view.first
        if last is not None and adjacent and last.parent.id == view.parent.id:
            count = last.count + view.count
            joined[-1] = View(last.parent, last.first, count, last.storage, last.format)
        else:
            joined.append(view)
    return tuple(joined)
