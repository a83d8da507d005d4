"""Acceptance on a GPU, by stages; each writes OUT/STAGE.json and prints a table.

Usage: python bench/accept/gpu.py --stage all|ops|model|speed|soak|gaps|contexts --out DIR
       [--device cuda:0] [--only STEP ...] [--tiny] [options of the stage]

``all`` is ops, model, speed and soak in processes of their own, whatever fails, within ``--limit``
seconds. With ``--device cpu --tiny`` everything but the GPU itself can be tried anywhere. Exit
status 1 when a step failed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from _stage import Stage

STAGES = ("all", "ops", "model", "speed", "soak", "gaps", "contexts")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", nargs="+", default=[], help="steps with one of these in the name")
    parser.add_argument("--limit", type=float, default=480, help="seconds after which none starts")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes of everything")
    parser.add_argument("--commit", default="", help="of this code, for the report")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=200, help="model: cases of each family")
    parser.add_argument("--cpu-cases", type=int, default=20, help="model: of them on the CPU too")
    parser.add_argument(
        "--cpu-report", type=Path, help="model: report of a CPU's answers, instead of such cases"
    )
    parser.add_argument("--requests", type=int, default=1000, help="model: of batch invariance")
    parser.add_argument("--soak-seconds", type=float, default=60)
    parser.add_argument("--model", default="demo", help="soak: MODEL")
    parser.add_argument("--geometry", nargs="+", default=["0.8b"], help="speed: sizes")
    parser.add_argument("--weights", nargs="+", default=["bf16"], help="speed: formats")
    parser.add_argument(
        "--activations", nargs="+", default=[], choices=["auto", "a16"],
        help="speed: also prompts of one chunk each, once with each of these",
    )  # fmt: skip
    parser.add_argument("--batch", default="1,4,8", help="speed: requests at once")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    if asked.stage == "all":
        return int(importlib.import_module("gpu_all").run(asked))
    stage = Stage(asked.stage, asked.out, asked.limit, frozenset(asked.only), vars(asked))
    importlib.import_module(f"gpu_{asked.stage}").steps(stage, asked)
    stage.write()
    stage.table()
    return 0 if stage.passed else 1


if __name__ == "__main__":
    sys.exit(main())
