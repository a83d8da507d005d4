"""Draft backends for tests: the MTP head with random weights, and others that know the answer."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ninfer_core.artifact import open_artifact
from ninfer_core.contract.speculation import CacheShape, Proposal
from ninfer_core.ops.reference import OPS
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.convert import convert_checkpoint
from ninfer_qwen3_5.convert.parameters import mtp_parameters
from ninfer_qwen3_5.load.source import ArtifactSource
from ninfer_qwen3_5.load.text import TextLoader
from ninfer_qwen3_5.model.lending import LentParts
from ninfer_qwen3_5.program.drafting import Drafting
from ninfer_qwen3_5.program.layout import own_cache
from ninfer_spec_dflash.drafter import DFlashDrafter
from ninfer_spec_mtp.drafter import MtpDrafter
from tests.model.block_drafters import bind_block, small_config
from tests.model.conftest import Case

BACKENDS = ("mtp", "dflash", "dflash2")
VOCAB = 320
Script = Callable[[int, int, int], int]
"""Table row, position and the token there to the token behind it."""


class Scripted:
    """Drafts what ``script`` says, whatever the backend behind it makes of what it sees: the first
    ``right`` of a round as they are, the others changed."""

    script: Script
    right: Callable[[], int]

    def propose(
        self, ids: Any, rows: Any, caches: Any, places: Sequence[Any], drawing: Any = None
    ) -> Proposal:
        made = super().propose(ids, rows, caches, places).drafts  # type: ignore[misc]
        rows = places[0].rows
        drafts = []
        for table_row, start, token in zip(
            rows.table_rows.tolist(), rows.starts.tolist(), ids.tolist(), strict=True
        ):
            drafted, right = [], self.right()
            for step in range(made.shape[1]):
                token = self.script(table_row, start + step, token)
                drafted.append(token if step < right else (token + 1) % VOCAB)
            drafts.append(drafted)
        return Proposal(torch.tensor(drafts, dtype=torch.int32).view(made.shape))


class ScriptedDrafter(Scripted, MtpDrafter):
    """Takes rows in as the MTP head does."""

    def __init__(self, script: Script, right: Callable[[], int]) -> None:
        super().__init__(cache_of())
        self.script = script
        self.right = right


class ScriptedBlock(Scripted, DFlashDrafter):
    """Takes rows in as a DFlash drafter does. ``kind`` is dflash or dflash2."""

    def __init__(self, kind: str, script: Script, right: Callable[[], int]) -> None:
        super().__init__(small_config(kind))
        self.script = script
        self.right = right


def unscripted(kind: str) -> MtpDrafter | DFlashDrafter:
    """A drafter of any backend that drafts by itself."""
    return MtpDrafter(cache_of()) if kind == "mtp" else DFlashDrafter(small_config(kind))


def scripted(kind: str, script: Script, right: Callable[[], int]) -> MtpDrafter | DFlashDrafter:
    """A scripted drafter of any backend, mtp, dflash or dflash2."""
    if kind == "mtp":
        return ScriptedDrafter(script, right)
    return ScriptedBlock(kind, script, right)


def followers(*known: Sequence[int]) -> Script:
    """The script of sequences that are known whole, told apart by a place and the token there."""
    after = {
        (place, token): following
        for tokens in known
        for place, (token, following) in enumerate(itertools.pairwise(tokens))
    }
    return lambda row, place, token: after.get((place, token), 0)


def cache_of(config: TextConfig | None = None) -> CacheShape:
    """The cache of one layer of the target's kind; a scripted drafter gets its shape when it is
    bound."""
    return CacheShape(0, 0) if config is None else own_cache(config)


def drafting(case: Case, drafter: MtpDrafter | DFlashDrafter, tokens: int) -> Drafting:
    """``drafter`` bound to the case's model with random weights: those of the head beside its
    checkpoint, or of a DFlash model."""
    if isinstance(drafter, DFlashDrafter):
        bind_block(case, drafter)
        return Drafting(drafter, tokens)
    drafter.caches = (cache_of(case.model.config),)
    with open_artifact(_artifact(case)) as artifact:
        loader = TextLoader(ArtifactSource(artifact, "mtp"), case.model.config, OPS)
        drafter.bind(LentParts(case.model, loader, "mtp"))
    return Drafting(drafter, tokens)


def head_tensors(case: Case) -> dict[str, torch.Tensor]:
    """The head's tensors by their names in a checkpoint; no norm is near trivial."""
    generator = torch.Generator().manual_seed(11)
    made = {}
    for spec in mtp_parameters(case.model.config):
        noise = torch.randn(spec.shape, generator=generator)
        scale = 0.3 if len(spec.shape) == 1 else 0.7 * spec.shape[-1] ** -0.5
        made[spec.name] = scale * noise
    return made


def _artifact(case: Case) -> Path:
    """The case's checkpoint with the head, converted once."""
    made = case.path.with_name("with_head.ninfer")
    if not made.exists():
        source = case.path.with_name("with_head")
        shutil.copytree(case.path.with_name("checkpoint"), source)
        config = json.loads((source / "config.json").read_text())
        config |= {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
        (source / "config.json").write_text(json.dumps(config))
        weights = source / "model.safetensors"
        save_file(load_file(weights) | head_tensors(case), weights, metadata={"format": "pt"})
        convert_checkpoint(source, made, recipe="fp32")
    return made


def random_right(seed: int, most: int) -> Callable[[], int]:
    """A new count of right drafts for every row of every round."""
    draw = random.Random(seed)
    return lambda: draw.randint(0, most)
