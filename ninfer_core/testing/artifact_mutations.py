"""A small artifact and seeded damage to it, to prove that a reader survives anything.

`survives` is the property: a damaged artifact either raises `ArtifactError`, is reported by
`verify`, or yields every object's original bytes.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ninfer_core.artifact import (
    ActivationPolicy,
    ArtifactDraft,
    ArtifactError,
    ArtifactWriter,
    QualityBlock,
    ResourceDraft,
    TensorDraft,
    Use,
    open_artifact,
    verify,
)
from ninfer_core.artifact.container import (
    ENTRY_MAGIC,
    HEADER_BYTES,
    Header,
    artifact_id,
    payload_start,
)
from ninfer_core.artifact.model import Binding, BindingPart, Component, Provenance, SourceFile

SMALL_PAYLOAD: dict[str, bytes] = {
    "text.gate_up": b"".join(struct.pack("<H", 0x3F80 + i) for i in range(24)),
    "text.norm": struct.pack("<3f", 1.0, -2.0, 0.5),
    "text.ids": struct.pack("<2i", 7, -9),
    "mtp.fc": struct.pack("<4H", 0x3F80, 0x4000, 0xBF80, 0x3F00),
    "resource/tokenizer.json": b'{"model":{}}',
}
"""The stored bytes of every object of `write_small`, by object id."""


def small_draft() -> ArtifactDraft:
    """Two components; a parent shared by two parameters, a tied parameter, and a resource."""
    layout = "contiguous_le_v1"
    return ArtifactDraft(
        name="small",
        components=(
            Component(
                "text",
                {"architectures": ["TinyForCausalLM"], "hidden_size": 4},
                None,
                {"tokenizer.json": "resource/tokenizer.json"},
            ),
            Component("mtp", {"layers": 1}, "text", {}),
        ),
        objects=(
            TensorDraft("text.gate_up", (6, 4), "bf16", layout),
            TensorDraft("text.norm", (3,), "fp32", layout),
            TensorDraft("text.ids", (2,), "int32", layout),
            TensorDraft("mtp.fc", (2, 2), "bf16", layout),
            ResourceDraft("resource/tokenizer.json", 12),
        ),
        bindings=(
            Binding("text.gate", (2, 4), (BindingPart("text.gate_up", 0, 8),)),
            Binding("text.up", (4, 4), (BindingPart("text.gate_up", 8, 16),)),
            Binding("text.head", (2, 4), (BindingPart("text.gate_up", 0, 8),)),
            Binding("text.norm", (3,), (BindingPart("text.norm", 0, 3),)),
            Binding("text.ids", (2,), (BindingPart("text.ids", 0, 2),)),
            Binding("mtp.fc", (2, 2), (BindingPart("mtp.fc", 0, 4),)),
        ),
        uses=(
            Use("text.gate", "hidden", ActivationPolicy.ALLOW_A8, {"divisor": "text.norm"}),
            Use("text.up", "hidden", ActivationPolicy.A16_ONLY),
        ),
        provenance=Provenance("test", "bf16", (SourceFile("model.safetensors", 3, "ab" * 32),)),
    )


def write_small(path: Path, **options: Any) -> str:
    """Write the small artifact to ``path``; returns its id."""
    with ArtifactWriter(path, small_draft(), **options) as writer:
        fill_small(writer)
        return writer.publish()


def fill_small(writer: ArtifactWriter, source_dtype: str = "bfloat16") -> None:
    """Write and finish every object of `small_draft`."""
    for object_id, data in SMALL_PAYLOAD.items():
        writer.write(object_id, 0, data)
        writer.finish(object_id, QualityBlock(source_dtype, True, 0.0, 0.0, 0.0, 0.0, 0.0))


def seal(directory: dict[str, Any], payload: bytes) -> bytes:
    """An entry file around any directory, with a header and id that fit."""
    encoded = json.dumps(directory).encode()
    header = Header(len(encoded), artifact_id(encoded)).pack(ENTRY_MAGIC)
    return (header + encoded).ljust(payload_start(len(encoded)), b"\0") + payload


def unseal(data: bytes) -> tuple[dict[str, Any], bytes]:
    """(JSON directory, payload) of a sound entry file."""
    count = int.from_bytes(data[8:16], "little")
    directory = json.loads(data[HEADER_BYTES : HEADER_BYTES + count])
    return directory, data[payload_start(count) :]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Damage a sound entry file; every second mutation changes the directory and seals it anew."""
    if rng.random() < 0.5:
        return rng.choice(_BYTE_DAMAGE)(data, rng)
    directory, payload = unseal(data)
    for _ in range(rng.randint(1, 3)):
        _damage_json(directory, rng)
    return seal(directory, payload)


def survives(path: Path) -> str:
    """The outcome for a damaged copy of the small artifact: "refused", "reported" or "equal".

    Raises AssertionError when bytes differ unnoticed; any other exception is a defect as well.
    """
    try:
        with open_artifact(path) as artifact:
            report = verify(artifact)
            stored = {entry.id: entry for entry in artifact.directory.objects}
            contents = {name: bytes(artifact.object_bytes(name)) for name in stored}
    except ArtifactError:
        return "refused"
    if not report.ok:
        return "reported"
    originals = set(SMALL_PAYLOAD.values())
    assert all(value in originals for value in contents.values()), "bytes changed unnoticed"
    return "equal"


def _flip(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _flip_header(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    damaged[rng.randrange(HEADER_BYTES)] = rng.randrange(256)
    return bytes(damaged)


def _flip_payload(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    start = payload_start(int.from_bytes(data[8:16], "little"))
    damaged[rng.randrange(start, len(data))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _append(data: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.randint(1, 64))


def _splice(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(data)) for _ in range(2))
    at = rng.randrange(len(data))
    return data[:at] + data[start:end] + data[at:]


_BYTE_DAMAGE: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip,
    _flip_payload,
    _flip_header,
    _truncate,
    _append,
    _splice,
)

_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 255, 256, 4096, 1 << 31, (1 << 63) - 1, 1 << 70, 0.5, -0.5, 1e300),
    *("", "text", "text.norm", "bf16", "fp32", "q9_g64", "é", "\u0000", "a" * 2000, [], {}),
    *([1], [2, 12], [1 << 40, 1 << 40], {"x": 1}, "mtp", "resource", "0" * 64),
)


def _damage_json(root: dict[str, Any], rng: random.Random) -> None:
    """Replace, drop, copy or rename one member somewhere in the tree."""
    places = [(holder, key) for holder in _containers(root) for key in _keys(holder)]
    if not places:
        return
    holder, key = rng.choice(places)
    action = rng.choice(("replace", "replace", "nudge", "drop", "copy", "insert"))
    if action == "replace":
        holder[key] = rng.choice(_ODD_VALUES)
    elif action == "nudge" and type(holder[key]) is int:
        holder[key] += rng.choice((-256, -2, -1, 1, 2, 256))
    elif action == "drop":
        del holder[key]
    elif action == "copy":
        source, source_key = rng.choice(places)
        if source_key in _keys(source):
            holder[key] = json.loads(json.dumps(source[source_key]))
    elif isinstance(holder, list):
        holder.insert(key, json.loads(json.dumps(holder[key])))
    else:
        holder[rng.choice(("extra", "id", "parts", ""))] = rng.choice(_ODD_VALUES)


def _containers(node: Any) -> list[Any]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    nested = [inner for child in children for inner in _containers(child)]
    return [node, *nested] if isinstance(node, dict | list) else nested


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))
