"""The ``.ninfer`` v3 artifact: typed directory, reader, writer, binder, verification.

Importing this package loads neither torch nor numpy; decoding does, when it is first asked for.
"""

from ninfer_core.artifact.binding import Binder, BoundTensor, View
from ninfer_core.artifact.encoded import EncodedMatrix
from ninfer_core.artifact.errors import ArtifactError, ConversionError
from ninfer_core.artifact.formats import FormatRegistry, WeightFormat, builtin_registry
from ninfer_core.artifact.inspect import ArtifactSummary, summarise
from ninfer_core.artifact.model import ActivationPolicy, Directory, QualityBlock, Use
from ninfer_core.artifact.placement import ArtifactDraft, ResourceDraft, TensorDraft
from ninfer_core.artifact.reader import Artifact, open_artifact
from ninfer_core.artifact.verify import VerifyReport, verify
from ninfer_core.artifact.writer import ArtifactWriter

__all__ = [
    "ActivationPolicy",
    "Artifact",
    "ArtifactDraft",
    "ArtifactError",
    "ArtifactSummary",
    "ArtifactWriter",
    "Binder",
    "BoundTensor",
    "ConversionError",
    "Directory",
    "EncodedMatrix",
    "FormatRegistry",
    "QualityBlock",
    "ResourceDraft",
    "TensorDraft",
    "Use",
    "VerifyReport",
    "View",
    "WeightFormat",
    "builtin_registry",
    "open_artifact",
    "summarise",
    "verify",
]
