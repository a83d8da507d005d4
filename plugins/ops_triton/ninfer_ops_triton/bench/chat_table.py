"""The report of ``bench chat`` as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

Json = Mapping[str, Any]

_COLUMNS = ("turn", "talk", "prompt", "cached", "ttft, ms", "off, ms", "reason")


def print_chat(report: Json) -> None:
    """One row for each request, then what holds for all."""
    console = Console()
    table = Table(title=f"{report['model']} on {', '.join(report['devices'])}")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "reason" else "right")
    turn = 0
    for row in report["requests"]:
        if row["turn"] != turn and turn:
            table.add_section()
        turn = row["turn"]
        table.add_row(*_cells(row))
    console.print(table)
    for line in _lines(report):
        console.print(line, markup=False, highlight=False)


def _cells(row: Json) -> tuple[str, ...]:
    where = [part for part in (row["point"], row["tier"]) if part]
    return (
        str(row["turn"]),
        str(row["conversation"]),
        str(row["prompt_tokens"]),
        str(row["cached_tokens"]),
        f"{row['ttft_ms']:.1f}",
        f"{row['off_ttft_ms']:.1f}",
        f"{row['reason']} ({', '.join(where)})" if where else row["reason"],
    )


def _lines(report: Json) -> list[str]:
    setting, whole, kept = report["setting"], report["total"], report["kept"]
    medians = [
        f"turn {one['turn']}: {one['cached_share']:.1%} cached, first token "
        f"{one['ttft_ms']:.1f} ms, cache off {one['off_ttft_ms']:.1f} ms (medians)"
        for one in report["turns"]
    ]
    return [
        *medians,
        f"cached {whole['cached_tokens']:,} of {whole['prompt_tokens']:,} prompt tokens "
        f"({whole['cached_share']:.1%}), {whole['same_answers']} of {whole['requests']} answers "
        "the same as with the cache off",
        f"policy {setting['cache']}: {kept['captures']} points captured, {kept['kept_ends']} ends "
        f"kept, {kept['reclaimed']} given up, {kept['checkpoints']} stand; "
        f"{setting['cache_slots']} state slots and {setting['kv_tokens']:,} tokens of context",
        f"host: {kept['demotions']} points copied there ({kept['demoted_bytes']:,} bytes), "
        f"{whole['tiers'].get('host', 0)} of {sum(whole['tiers'].values())} adoptions from there, "
        f"{whole['restored_bytes']:,} bytes moved for adoptions",
    ]
