"""Whether an artifact's drafter can draft for its target, said before anything is loaded."""

from __future__ import annotations

from typing import Final

from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.hookspecs import TargetFacts, Verdict
from ninfer_spec_dflash.config import DFlashConfig, check_fit

NAMES: Final = {"dflash": "DFlash", "dflash2": "DFlash2"}


def read(component: str, target: TargetFacts) -> DFlashConfig:
    """The checked configuration of a drafter that fits ``target``. Raises ArtifactError."""
    path = f"components.{component}.config"
    found = target.components.get(component)
    if found is None:
        raise ArtifactError(
            path, f"the artifact has no {NAMES[component]} drafter", "convert with --drafter DIR"
        )
    config = DFlashConfig.from_json(found, path)
    if config.component != component:
        raise ArtifactError(
            f"{path}.architectures",
            f"{config.architecture} is not what {component} drafts with",
            f"choose --spec {config.component}, and convert again",
        )
    check_fit(
        config,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        layers=target.layers,
        path=path,
    )
    _check_runs(config, path)
    return config


def verdict(component: str, target: TargetFacts) -> Verdict:
    """Whether :func:`read` succeeds."""
    try:
        read(component, target)
    except ArtifactError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return Verdict.no(f"{error.message}{hint}")
    return Verdict.yes()


def _check_runs(config: DFlashConfig, path: str) -> None:
    """What the ops of a block take."""
    for place, layer in enumerate(config.layers):
        if layer.window is not None and layer.window < config.block_size:
            raise ArtifactError(
                f"{path}.sliding_window",
                f"{layer.window} of layer {place} does not hold a block of {config.block_size}",
                "give a drafter with a larger window",
            )
