"""Requests made up from the OpenAPI document, valid ones and broken ones, never end in a fault.

Usage: python bench/accept/http_schemathesis.py [--examples 2000] [--seed 0]

The server answers with at most 16 tokens, or with what a context of 512 has left where more
``min_tokens`` are asked for. Each operation gets its share of the examples, half of
them broken on purpose, some of them right but for a few fields, some of those with numbers from the
ends of what machines count in. A reply with status 500 or above, or none within 60 seconds, is a
fault; it is reported with what the server logged, and after one that ended the engine no more is
asked.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import schemathesis
from _server import capped, log_tail
from _setting import print_report
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.generation import GenerationMode

CAP = 16
CONTEXT = 512
"""An answer of as many tokens takes a busy machine no minute."""
TALK = [{"role": "user", "content": "Sort: 9, 2, 5"}]
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TALK},
    "/v1/completions": {"prompt": "one two"},
    "/v1/messages": {"model": "demo", "max_tokens": 9, "messages": TALK},
    "/v1/messages/count_tokens": {"model": "demo", "messages": TALK},
    "/v1/responses": {"input": "Sort: 9, 2, 5"},
    "/v1/responses/input_tokens": {"input": "Sort: 9, 2, 5"},
    "/tokenize": {"prompt": "one two"},
}
"""A right body for each route that takes one."""
ENDS = [(1 << bits) - off for bits in (31, 32, 53, 63, 64, 70) for off in (0, 1)]
"""Put in place of a whole number in some requests."""
PATIENCE = 60.0
_TOLD = 60
"""Lines of the log in the report of a fault."""
MOST_CHOICES = 8
"""A request for more, which the server would answer, asks for so many: a hundred take a while."""


def explore(url: str, examples: int, start: int, log: Sequence[str] = ()) -> dict[str, Any]:
    """Ask ``url`` for at least so many made-up requests; what came back, by operation. ``log`` is
    what the server has logged, latest last."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses: dict[str, Counter[str]] = {one.label: Counter() for one in operations}
    faults: list[dict[str, Any]] = []
    asked = 0
    for operation, case in _all_requests(operations, examples, random.Random(start)):
        status = _ask(case)
        asked += 1
        statuses[operation.label][status] += 1
        if not status.isdecimal() or int(status) >= 500:
            found = {"operation": operation.label, "status": status, **_shown(case)}
            faults.append(found | {"log": list(log)[-_TOLD:]})
            if not _ready(url):
                break
    return {
        "asked": asked,
        "statuses": {label: dict(count) for label, count in statuses.items()},
        "faults": faults[:20],
    }


def _all_requests(
    operations: Sequence[Any], examples: int, rng: random.Random
) -> Iterator[tuple[Any, Any]]:
    """At least ``examples`` requests with their operations, in turns over all of these."""
    posts = sum(operation.method.lower() == "post" for operation in operations)
    made = 0
    while made < examples:
        share = max(1, -(-(examples - made) // (3 * posts)))
        for operation in operations:
            for case in _requests(operation, share, rng):
                yield operation, case
                made += 1


def _requests(operation: Any, share: int, rng: random.Random) -> Iterator[Any]:
    """Requests that the document allows, that it forbids, and right ones with a few fields of
    either kind: most made-up ones are refused for their first wrong field."""
    base = BASES.get(operation.path)
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        for number, case in enumerate(_cases(operation, mode, share, rng.getrandbits(32))):
            yield case
            if base and isinstance(case.body, dict) and case.body and number % 2 == 0:
                names = rng.sample(sorted(case.body), min(len(case.body), rng.randrange(1, 3)))
                case.body = base | {name: case.body[name] for name in names}
                yield case
                yield from _at_the_ends(case, rng)


def _at_the_ends(case: Any, rng: random.Random) -> Iterator[Any]:
    """``case`` with one of the whole numbers that its operation takes at an end of the integers."""
    raw = case.operation.schema.raw_schema
    content = raw["paths"][case.operation.path]["post"]["requestBody"]["content"]
    named = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    fields = raw["components"]["schemas"][named]["properties"]
    numbers = [name for name, said in fields.items() if "'integer'" in str(said)]
    if numbers:
        case.body = case.body | {rng.choice(sorted(numbers)): rng.choice(ENDS)}
        yield case


def _ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=60) as answer:
        return bool(answer.status == 200)
    return False


def _cases(operation: Any, mode: Any, share: int, start: int) -> Iterator[Any]:
    """Up to ``share`` requests; an operation may have nothing that can be broken."""
    cases: list[Any] = []

    @seed(start)
    @settings(
        max_examples=share,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def collect(case: Any) -> None:
        cases.append(case)

    try:
        collect()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
            raise
    return iter(cases)


def _ask(case: Any) -> str:
    """The status of the reply, or what came instead of one."""
    if isinstance(case.body, dict) and case.body.get("n") in range(MOST_CHOICES, 129):
        case.body["n"] = MOST_CHOICES
    began = time.monotonic()
    try:
        reply = case.call(timeout=PATIENCE)
    except Exception as error:
        return f"{type(error).__name__} after {time.monotonic() - began:.1f} s: {error}"
    return str(reply.status_code)


def _shown(case: Any) -> dict[str, Any]:
    """The request; as a command, the library would leave out fields named like secrets."""
    body = json.dumps(case.body, default=repr)[:3000]
    return {"method": case.method, "path": case.formatted_path, "query": case.query, "body": body}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with log_tail() as log, capped(CAP, context=CONTEXT) as url:
        began = time.monotonic()
        found = explore(url, args.examples, args.seed, log)
        seconds = time.monotonic() - began
    report = {"accept": "http_schemathesis", **vars(args), "cap": CAP, "seconds": seconds, **found}
    print_report(report, not found["faults"] and found["asked"] >= args.examples)


if __name__ == "__main__":
    main()
