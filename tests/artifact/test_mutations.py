"""Seeded damage: a damaged artifact is refused, reported, or has its original bytes."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from pathlib import Path

from ninfer_core.testing.artifact_mutations import mutate, survives, write_small

COUNT = 1000
PEAK_BYTES = 4 << 20


def test_a_thousand_damaged_copies_end_well(tmp_path: Path) -> None:
    sound = tmp_path / "sound.ninfer"
    write_small(sound)
    data, path = sound.read_bytes(), tmp_path / "damaged.ninfer"
    outcomes: Counter[str] = Counter()
    for seed in range(COUNT):
        path.write_bytes(mutate(data, random.Random(seed)))
        outcomes[survives(path)] += 1
    assert outcomes.total() == COUNT
    assert min(outcomes[kind] for kind in ("refused", "reported", "equal")) >= 5


def test_damaged_parts_end_well(tmp_path: Path) -> None:
    entry = tmp_path / "a.ninfer"
    write_small(entry, part_bytes=64)
    part = tmp_path / "a.ninfer.part-0002"
    data = part.read_bytes()
    outcomes: Counter[str] = Counter()
    for seed in range(200):
        rng = random.Random(seed)
        at = rng.choice((rng.randrange(32), 4096 + rng.randrange(8), rng.randrange(len(data))))
        part.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        outcomes[survives(entry)] += 1
    assert outcomes["refused"] > 50
    assert outcomes["reported"] > 50
    assert outcomes.total() == 200


def test_memory_stays_bounded_whatever_the_damage(tmp_path: Path) -> None:
    sound = tmp_path / "sound.ninfer"
    write_small(sound)
    data, path = sound.read_bytes(), tmp_path / "damaged.ninfer"
    survives(sound)
    for seed in range(COUNT, COUNT + 100):
        path.write_bytes(mutate(data, random.Random(seed)))
        tracemalloc.start()
        survives(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < PEAK_BYTES
