"""Sampling fields, as plain values, as the engine's sampling law and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ninfer_core.contract.engine import LoadSummary
from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.sampling import MAX_LOGPROBS, SamplingParams
from ninfer_gateway_http.texts import refuse_halves

MAX_STOP_STRINGS: Final = 16
SEEDS: Final = 1 << 64
LEAST_SEED: Final = -(1 << 63)


def sampling_params(
    model: LoadSummary,
    *,
    top_k: int | None = None,
    seed: int | None = None,
    logit_bias: Mapping[str, float] | None = None,
    **given: float | None,
) -> SamplingParams:
    """The model's own sampling defaults with what is not None put over them.

    ``given`` are further fields of SamplingParams under their own names. A ``top_k`` of -1 means 0,
    which keeps all tokens, a ``seed`` of -1 none. Raises InvalidRequest that names the field.
    """
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if top_k is not None:
        changes["top_k"] = 0 if top_k == -1 else top_k
    if seed is not None and seed != -1:
        changes["seed"] = _seed(seed)
    if logit_bias is not None:
        changes["logit_bias"] = _biases(logit_bias, model)
    return replace(model.default_sampling, **changes)


def _seed(seed: int) -> int:
    """OpenAI's seeds are signed: those below zero count back from the largest."""
    if not LEAST_SEED <= seed < SEEDS:
        raise InvalidRequest(
            f"seed is {seed}; it must lie between -2**63 and 2**64 - 1", param="seed"
        )
    return seed % SEEDS


def of_choice(sampling: SamplingParams, index: int) -> SamplingParams:
    """The law of choice ``index`` of one request: a given seed counts up by one per choice."""
    if sampling.seed is None or index == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + index) % SEEDS)


def token_ids(ids: Sequence[int], model: LoadSummary, param: str) -> tuple[int, ...]:
    """``ids``, all of which the model has. Raises InvalidRequest."""
    for token in ids:
        if not 0 <= token < model.vocab_size:
            raise InvalidRequest(
                f"{param} names token {token}; ids run from 0 to {model.vocab_size - 1}",
                param=param,
            )
    return tuple(ids)


def stop_strings(stop: str | Sequence[str] | None, param: str = "stop") -> tuple[str, ...]:
    """One text, several or none. Raises InvalidRequest for too many of them, or one
    that no answer can hold."""
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"{param} has {len(strings)} strings; at most {MAX_STOP_STRINGS}", param=param
        )
    for index, text in enumerate(strings):
        refuse_halves(text, param if isinstance(stop, str) else f"{param}[{index}]")
    return strings


def alternatives(count: int | None, param: str) -> int | None:
    """A number of likeliest tokens to report. Raises InvalidRequest outside of its range."""
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"{param} is {count}; it must lie between 0 and {MAX_LOGPROBS}", param=param
        )
    return count


def one_of(param: str, **spellings: Any) -> Any:
    """The one value of several spellings of a field, None without any. ``param`` is named in the
    InvalidRequest that differing values raise."""
    given = {name: value for name, value in spellings.items() if value is not None}
    values = list(given.values())
    if any(value != values[0] for value in values[1:]):
        raise InvalidRequest(f"{' and '.join(given)} differ; give one of them", param=param)
    return values[0] if values else None


def token_limit(asked: int | None, param: str) -> int | None:
    """A limit of output tokens; 0 reads the prompt only. Raises InvalidRequest below that."""
    if asked is not None and asked < 0:
        raise InvalidRequest(f"{param} is {asked}; it must not be negative", param=param)
    return asked


def _biases(biases: Mapping[str, float], model: LoadSummary) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            raise InvalidRequest(
                f"logit_bias has the key {key[:40]!r}; keys are token ids", param="logit_bias"
            )
    ids = token_ids([int(key) for key in biases], model, "logit_bias")
    return dict(zip(ids, biases.values(), strict=True))
