"""Constrained answers of the demo model at temperature 1.5: each natural end must be valid.

Usage: python bench/accept/constrained.py [--schemas 1000] [--others 200] [--tools 500] [--seed 0]
                                          [--plugin spec_mtp] [--draft-tokens K]

With a draft backend the answers are verified drafts: the report counts these, and without a
``--draft-tokens`` every K from 1 to 7 has its share of the requests.

Schemas are proved by jsonschema, expressions by ``re.fullmatch``, grammars by a recogniser of their
own. Prints one JSON object; exit status 1 if an answer was wrong, a keyword is missing from the
schemas, or fewer than 60 % of them ended within 256 tokens.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any

from _constrained_cases import cases, run
from _random_schemas import keywords
from _setting import open_demo, print_report

LEAST_OF_A_KEYWORD = 50
LEAST_NATURAL = 0.6
EVERY_K = range(1, 8)


def add(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Sum counts, join lists and tables."""
    for name, value in more.items():
        if isinstance(value, dict):
            add(total.setdefault(name, {}), value)
        elif isinstance(value, list):
            total[name] = [*total.get(name, []), *value]
        else:
            total[name] = round(total.get(name, 0) + value, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("schemas", 1000), ("others", 200), ("tools", 500), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--plugin", action="append", default=[], help="such as spec_mtp")
    parser.add_argument("--draft-tokens", type=int, default=0, help="K; 0 is 1 to 7 in turn")
    args = parser.parse_args()
    counts = {
        "schema": args.schemas,
        "tools": args.tools,
        **dict.fromkeys(("regex", "choice", "grammar"), args.others),
    }
    asked = {kind: list(cases(kind, count, args.seed)) for kind, count in counts.items()}
    drafts = list(EVERY_K) if args.plugin and not args.draft_tokens else [args.draft_tokens]
    report: dict[str, Any] = {kind: {} for kind in counts}
    for place, k in enumerate(drafts):
        with open_demo(plugins=tuple(args.plugin), draft_tokens=k) as engine:
            for kind, wanted in asked.items():
                started = time.perf_counter()
                found = run(engine, wanted[place :: len(drafts)])
                found["seconds"] = round(time.perf_counter() - started, 1)
                add(report[kind], found)
                print(f"{kind} with {k} drafts: {found}", file=sys.stderr)
    used = Counter(word for case in asked["schema"] for word in set(keywords(case.what)))
    report["keywords"] = dict(sorted(used.items()))
    report["plugins"], report["draft_tokens"] = args.plugin, drafts
    ended = report["schema"].get("natural", 0) / max(1, args.schemas)
    rare = [name for name, times in used.items() if times < LEAST_OF_A_KEYWORD]
    report["natural_share"] = round(ended, 3)
    report["rare_keywords"] = rare if args.schemas >= 1000 else []
    wrong = sum(report[kind].get("wrong", 0) for kind in counts)
    print_report(report, not wrong and ended >= LEAST_NATURAL and not report["rare_keywords"])


if __name__ == "__main__":
    main()
