"""Checks of the options that are fixed at start."""

from __future__ import annotations

from ninfer_core.contract.engine import ACTIVATIONS, MAX_CONCURRENCY, EngineOptions
from ninfer_core.contract.instance import Purpose
from ninfer_core.errors import NinferError


class InvalidOption(NinferError):
    """A start option has a value that no engine can work with."""

    exit_code = 2


def check_options(options: EngineOptions) -> None:
    """Raises InvalidOption naming the field, its value and what it may be."""
    _between("max_concurrency", options.max_concurrency, 1, MAX_CONCURRENCY)
    _between("max_pending", options.max_pending, 0, None)
    _between("prefill_chunk", options.prefill_chunk, 1, None)
    _between("draft_tokens", options.draft_tokens, 0, None)
    for name in ("max_context", "kv_tokens"):
        value = getattr(options, name)
        if value is not None:
            _between(name, value, 1, None)
    for name in ("queue_timeout", "extra_state_slots", "host_bytes"):
        value = getattr(options, name)
        if value is not None:
            _between(name, value, 0, None)
    if options.activations not in ACTIVATIONS:
        raise InvalidOption(
            f"activations is {options.activations!r}", hint=f"give {' or '.join(ACTIVATIONS)}"
        )
    if options.max_gap_ms is not None:
        _check_gap(options, options.max_gap_ms)
    if not options.devices:
        raise InvalidOption("devices is empty", hint="give one, such as 'auto' or 'cpu'")


def _check_gap(options: EngineOptions, bound: float) -> None:
    if not bound > 0:
        raise InvalidOption(f"max_gap_ms is {bound}; it must be above 0")
    if options.purpose is not Purpose.GENERATION:
        raise InvalidOption("max_gap_ms is for generation", hint="leave it out to score")
    if options.max_concurrency == 1:
        raise InvalidOption(
            "max_gap_ms bounds what a prompt costs other requests; max_concurrency is 1",
            hint="give --max-concurrency 2 or more, or leave it out",
        )


def _between(name: str, value: float, low: int, high: int | None) -> None:
    if value < low or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidOption(f"{name} is {value}; it must be {span}")
