"""Constrained answers of the demo model at temperature 1.5: each natural end must be valid.

Usage: python bench/accept/constrained.py [--schemas 1000] [--others 200] [--tools 500] [--seed 0]

Schemas are proved by jsonschema, expressions by ``re.fullmatch``, grammars by a recogniser of their
own. Prints one JSON object; exit status 1 if an answer was wrong, a keyword is missing from the
schemas, or fewer than 60 % of them ended within 256 tokens.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

from _constrained_cases import cases, run
from _random_schemas import keywords
from _setting import open_demo, print_report

LEAST_OF_A_KEYWORD = 50
LEAST_NATURAL = 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("schemas", 1000), ("others", 200), ("tools", 500), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    counts = {
        "schema": args.schemas,
        "tools": args.tools,
        **dict.fromkeys(("regex", "choice", "grammar"), args.others),
    }
    report: dict[str, Any] = {}
    used: Counter[str] = Counter()
    with open_demo() as engine:
        for kind, count in counts.items():
            started, wanted = time.perf_counter(), list(cases(kind, count, args.seed))
            if kind == "schema":
                for case in wanted:
                    used.update(set(keywords(case.what)))
            report[kind] = run(engine, wanted)
            report[kind]["seconds"] = round(time.perf_counter() - started, 1)
    report["keywords"] = dict(sorted(used.items()))
    ended = report["schema"].get("natural", 0) / max(1, args.schemas)
    rare = [name for name, times in used.items() if times < LEAST_OF_A_KEYWORD]
    report["natural_share"] = round(ended, 3)
    report["rare_keywords"] = rare if args.schemas >= 1000 else []
    wrong = sum(report[kind].get("wrong", 0) for kind in counts)
    print_report(report, not wrong and ended >= LEAST_NATURAL and not report["rare_keywords"])


if __name__ == "__main__":
    main()
