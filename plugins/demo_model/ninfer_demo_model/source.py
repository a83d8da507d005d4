"""Where the demo model's artifact lies once the distribution is installed."""

from __future__ import annotations

from pathlib import Path

from ninfer_core.errors import NinferError

ARTIFACT = Path(__file__).with_name("data") / "demo.ninfer"


class DemoModelMissing(NinferError):
    """The distribution is installed without its artifact."""


def resolve() -> Path:
    """The `.ninfer` file of the demo model. Raises DemoModelMissing."""
    if not ARTIFACT.is_file():
        raise DemoModelMissing(
            f"the demo model's artifact {ARTIFACT} is missing",
            hint="reinstall it: pip install --force-reinstall --no-deps ninfer-demo-model",
        )
    return ARTIFACT
