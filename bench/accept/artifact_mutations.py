"""Damage a small artifact many times; every copy must be refused, reported, or read back equal.

Prints one JSON object and exits 1 when any copy ended otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from ninfer_core.testing.artifact_mutations import mutate, survives, write_small


def peak_mib() -> float:
    """Peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(count: int, first_seed: int, folder: Path) -> dict[str, Any]:
    """Outcomes of ``count`` mutations seeded from ``first_seed`` on, and the growth of memory."""
    sound, damaged = folder / "sound.ninfer", folder / "damaged.ninfer"
    write_small(sound)
    data = sound.read_bytes()
    outcomes: Counter[str] = Counter()
    failures = []
    survives(sound)
    before, started = peak_mib(), time.perf_counter()
    for seed in range(first_seed, first_seed + count):
        damaged.write_bytes(mutate(data, random.Random(seed)))
        try:
            outcomes[survives(damaged)] += 1
        except Exception:
            failures.append({"seed": seed, "error": traceback.format_exc(limit=-1)})
    return {
        "mutations": count,
        "first_seed": first_seed,
        "outcomes": dict(outcomes),
        "failures": failures,
        "peak_growth_mib": round(peak_mib() - before, 1),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(options.count, options.seed, Path(folder))
    print(json.dumps(result))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
