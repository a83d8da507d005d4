"""The report as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

Json = Mapping[str, Any]

_ROWS: tuple[tuple[str, Callable[[Json], Any]], ...] = (
    ("time to first token, ms", lambda r: f"{r['ttft_ms']['p50']:.1f}"),
    ("prefill, tokens/s", lambda r: f"{r['prefill_tokens_per_second']:,.0f}"),
    ("decode, tokens/s", lambda r: _number(r["decode_tokens_per_second"], ",.1f")),
    ("round p50, ms", lambda r: _number(r["round_ms"] and r["round_ms"]["p50"], ".3f")),
    ("gap p50 / p99, ms", lambda r: _gap(r["gap_ms"])),
    ("rounds", lambda r: str(r["rounds"])),
    ("tokens a round with drafts", lambda r: _number(r.get("tokens_per_round"), ".3f")),
    ("host, us", lambda r: _number(r["host_us"] and r["host_us"]["host"], ".0f")),
    ("  engine + submit + post + output", lambda r: _host(r["host_us"])),
    ("device wait, us", lambda r: _number(r["device_wait_us"], ".0f")),
    ("bytes a round, GB", lambda r: _number(_giga(r["bytes_per_round"]), ".3f")),
    ("share of roofline", lambda r: _number(r["roofline_share"], ".1%")),
)


def print_report(report: Json) -> None:
    """Figures of every run beside each other, then what holds for all."""
    console = Console()
    table = Table(title=f"{report['model']} on {', '.join(report['devices'])}")
    table.add_column("batch")
    for run in report["runs"]:
        table.add_column(str(run["batch"]), justify="right")
    table.add_row("tokens of a prompt", *(f"{run['prompt_tokens']:,}" for run in report["runs"]))
    for label, value in _ROWS:
        table.add_row(label, *(value(run) for run in report["runs"]))
    console.print(table)
    for line in _lines(report):
        console.print(line, markup=False, highlight=False)


def _lines(report: Json) -> list[str]:
    setting = report["setting"]
    memory = report["memory"]["bytes"]
    lines = [
        f"keys and values in {setting['kv_format']}, chunks of {setting['prefill_chunk']} tokens, "
        f"loaded in {report['load_seconds']:.1f} s",
        *_rounded(setting["activations"]),
        *_drafts(setting.get("draft")),
        "memory: " + ", ".join(f"{name} {size / 1e9:.3f} GB" for name, size in memory.items()),
    ]
    if report["read_bandwidth"]:
        lines.append(f"read bandwidth: {report['read_bandwidth']['used'] / 1e9:,.0f} GB/s")
    for peer in report["peers"]:
        lines += _peer_lines(peer)
    return [*lines, *(f"note: {note}" for note in report["notes"])]


def _rounded(activations: Json) -> list[str]:
    if not activations["a8"]:
        return []
    count = f"{activations['a8']} of {activations['matrices']}"
    return [f"activations of prompts in 8 bits for products with {count} matrices"]


def _drafts(draft: Json | None) -> list[str]:
    if draft is None:
        return []
    most = draft["tokens"]
    lines = [f"drafts: {draft['backend']}, {most} a round at most"]
    for rows, costs in draft.get("costs_ms", {}).items():
        lines.append(
            f"a round of {rows} rows: plain {costs['plain']:.3f} ms, verifying {most} drafts "
            f"{costs['verify'][most]:.3f} ms, making them {costs['draft'][most]:.3f} ms"
        )
    return lines


def _peer_lines(peer: Json) -> list[str]:
    if peer["skipped"]:
        return [f"{peer['name']}: skipped, {peer['skipped']}"]
    return [
        f"{peer['name']} {peer['version']} ({peer['path']}), batch {run['batch']}: first token "
        f"{run['ttft_ms']:.1f} ms, decode {run['decode_tokens_per_second']:,.1f} tokens/s"
        for run in peer["runs"]
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _gap(spread: Json | None) -> str:
    return f"{spread['p50']:.3f} / {spread['p99']:.3f}" if spread else "-"


def _host(parts: Json | None) -> str:
    names = ("engine", "submit", "post", "output")
    return " + ".join(f"{parts[name]:.0f}" for name in names) if parts else "-"


def _giga(moved: Json | None) -> float | None:
    return moved["total"] / 1e9 if moved else None
