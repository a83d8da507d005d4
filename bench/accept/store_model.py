"""Walks at random over the context stores of a Program, beside a model of them.

Usage: python bench/accept/store_model.py [--steps 10000] [--walk 200] [--seed 0] [--bugs]

Device slots, pages, host bytes, owners, replicas and pins agree with the model after each step, and
every content is read back; copies are late, fail and are cancelled. With ``--bugs``, bugs that are
put in on purpose must all be noticed. Runs on the CPU. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.model.stores.bugs import BUGS, noticed
from tests.model.stores.machine import KINDS, StoreMachine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--walk", type=int, default=200, help="steps of each walk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bugs", action="store_true", help="put bugs in, too")
    asked = parser.parse_args()
    started, done, steps = time.perf_counter(), Counter[str](), 0
    trouble, seed = None, asked.seed
    while steps < asked.steps and trouble is None:
        machine = StoreMachine(seed)
        try:
            for _ in range(min(asked.walk, asked.steps - steps)):
                machine.step()
                steps += 1
            machine.close()
        except Exception as error:
            trouble = f"walk {seed}, after {steps} steps: {type(error).__name__}: {error}"
        done += machine.done
        seed += 1
    found = {bug.__name__: noticed(bug, 12, 200) for bug in BUGS} if asked.bugs else {}
    missing = sorted(kind for kind in KINDS if not done[kind])
    report = {
        "steps": steps,
        "walks": seed - asked.seed,
        "done": dict(done.most_common()),
        "never_done": missing,
        "trouble": trouble,
        "bugs": found,
        "seconds": round(time.perf_counter() - started, 1),
        "ok": trouble is None and not missing and None not in found.values(),
    }
    print(json.dumps(report, indent=2))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
