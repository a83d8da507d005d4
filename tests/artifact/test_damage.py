"""Damage that happened after the artifact was written is met where its bytes are used."""

from __future__ import annotations

import random

import pytest

from ninfer_core.artifact import ArtifactError, Binder, open_artifact
from ninfer_core.testing.artifact_mutations import write_small


def test_every_flipped_payload_bit_is_met_by_its_consumer(tmp_path):
    path = tmp_path / "small.ninfer"
    write_small(path)
    sound = path.read_bytes()
    with open_artifact(path) as artifact:
        used = _use(artifact)
        places = [
            len(sound) - artifact.directory.files[0].bytes + entry.offset
            for entry in artifact.directory.objects
            if entry.bytes
        ]
    assert used
    rng = random.Random(0)
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with open_artifact(path) as artifact, pytest.raises(ArtifactError, match="SHA-256"):
            _use(artifact)


def _use(artifact) -> int:
    """Bind every parameter and read every resource; how many there were."""
    names = artifact.component_names
    binder = Binder(artifact, names)
    count = 0
    for name in names:
        for binding in artifact.bindings(name):
            binder.tensor(binding.parameter, binding.shape)
            count += 1
        for resource in artifact.component(name).resources:
            artifact.resource(name, resource)
            count += 1
    return count
