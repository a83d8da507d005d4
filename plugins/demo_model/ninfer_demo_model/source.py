"""Where the demo model's artifact lies."""

from __future__ import annotations

from pathlib import Path

ARTIFACT = Path(__file__).with_name("data") / "demo.ninfer"


def resolve() -> Path:
    """The artifact inside the installed package."""
    return ARTIFACT
