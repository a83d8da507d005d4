"""The public JSON-Schema test suite through the lowering and the matcher.

Usage: python bench/accept/json_schema_suite.py SUITE [--verbose]

SUITE is the folder ``json/tests/draft2020-12`` of the suite; the source distribution of jsonschema
holds it. Each instance is written compactly, whole numbers as such, members in the order in which
the schema declares them, and goes byte by byte through the library's matcher of the lowered schema
(not strict: what a schema leaves open stays open). A group is supported unless it is refused, which
happens by name. Prints one JSON object; exit status 1 if a supported group disagrees anywhere, or
fewer than 220 groups are supported.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _arranged import arranged
from _setting import print_report

from ninfer_core.contract.errors import InvalidSchema
from ninfer_core.contract.frontend import GrammarSource
from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar.backend import XGrammarCompiler, open_backend
from ninfer_grammar_xgrammar.schema.terms import canonical

LEAST_GROUPS = 220
END = 256
_WHOLE = {"part": "content", "exits": {}, "early": {}, "end": True}
FRAMING = json.dumps({"start": 0, "stages": [_WHOLE]})


def byte_backend() -> XGrammarCompiler:
    """A backend for a vocabulary of single bytes."""
    texts = [bytes([value]) for value in range(256)]
    return open_backend(GrammarVocabulary(token_bytes=[*texts, b""], ends=frozenset({END})))


def accepts(backend: XGrammarCompiler, schema: Any) -> Any:
    """A check of texts. Raises InvalidSchema."""
    part = {"kind": "json_schema", "schema": schema, "param": "schema", "closed": False}
    text = json.dumps({"parts": {"content": part}}, ensure_ascii=False)
    source = GrammarSource("json_schema", text, FRAMING, text.encode())
    try:
        compiled = backend.compile(source)
    except InvalidSchema as error:
        if error.code != "unsatisfiable_json_schema":
            raise
        return lambda text: False

    def check(text: str) -> bool:
        matcher, tokens = backend.open(compiled), [*text.encode(), END]
        return matcher.accept(tokens) == len(tokens)

    return check


def groups(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield path.stem, group


def disagreements(backend: XGrammarCompiler, group: dict[str, Any]) -> list[str]:
    """The tests of a supported group that come out otherwise. Raises InvalidSchema."""
    schema = group["schema"]
    check = accepts(backend, schema)
    wrong = []
    for test in group["tests"]:
        text = canonical(arranged(test["data"], schema, closed=False))
        if check(text) != test["valid"]:
            wrong.append(f"{group['description']}: {test['description']}: {text}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--verbose", action="store_true", help="list every refusal")
    args = parser.parse_args()
    backend, refusals = byte_backend(), []
    supported: Counter[str] = Counter()
    total: Counter[str] = Counter()
    wrong: list[str] = []
    tests = 0
    for name, group in groups(args.suite):
        total[name] += 1
        try:
            wrong += disagreements(backend, group)
        except InvalidSchema as error:
            refusals.append(f"{name}: {group['description']}: {error.message}")
        else:
            supported[name] += 1
            tests += len(group["tests"])
    report = {
        "groups": total.total(),
        "supported": supported.total(),
        "tests_of_supported": tests,
        "disagreements": wrong,
        "by_file": {name: f"{supported[name]}/{count}" for name, count in total.items()},
        "refusals": refusals if args.verbose else len(refusals),
    }
    print_report(report, not wrong and supported.total() >= LEAST_GROUPS)


if __name__ == "__main__":
    main()
