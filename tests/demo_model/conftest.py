"""The demo model's folder, whose training scripts are no installed package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

FOLDER = Path(__file__).parents[2] / "plugins" / "demo_model"


@pytest.fixture(scope="session")
def folder():
    return FOLDER


@pytest.fixture(scope="session")
def checkpoint():
    return FOLDER / "checkpoint"


@pytest.fixture(scope="session")
def training():
    """Makes `train.*` importable, as running the scripts in their folder does."""
    sys.path.insert(0, str(FOLDER))
    yield FOLDER / "train"
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="session")
def tokenizer(checkpoint):
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


@pytest.fixture(scope="session")
def encoder(training, tokenizer):
    from train.rendering import Encoder

    return Encoder(tokenizer)
