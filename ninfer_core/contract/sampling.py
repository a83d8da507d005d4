"""How one request turns logits into tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

from ninfer_core.contract.errors import InvalidRequest

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MIN_TEMPERATURE = 1e-6
"""A smaller divisor could push logits beyond float32."""


def plain(record: object, name: str, kind: type[int] | type[float]) -> None:
    """Make a number of a frozen ``record`` one of ``kind``; None stays None."""
    value = getattr(record, name)
    if value is not None and type(value) is not kind:
        object.__setattr__(record, name, kind(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling law of one request, applied in this order on raw logits ``f32[V]``.

    repetition, presence and frequency penalties over the counts of generated tokens (repetition
    also over the prompt) → ``logit_bias`` → masks (padding rows, ``min_tokens``, constraint) →
    temperature → top-k → min-p → top-p → draw. ``temperature <= 0`` takes the largest logit after
    the masks, lowest token id on ties, and ignores the filters and the seed. ``top_k`` 0 keeps all.
    Draws are keyed by (seed, logical position, purpose) alone.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not (
                isinstance(value, Real) and math.isfinite(value) and low <= float(value) <= high
            ):
                raise InvalidRequest(
                    f"{name} is {value!r}; it must lie between {low} and {high}",
                    param=name,
                )
        self._check_temperature()
        for name in ("top_k", "seed"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Integral):
                raise InvalidRequest(f"{name} is {value!r}; it must be a whole number", param=name)
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise InvalidRequest("seed must lie between 0 and 2**64 - 1", param="seed")
        self._check_biases()
        self._make_plain()

    def _check_temperature(self) -> None:
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise InvalidRequest(
                f"temperature is {self.temperature!r}; it must be 0, which is greedy, "
                f"or at least {MIN_TEMPERATURE}",
                param="temperature",
            )

    def _check_biases(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS}",
                param="logit_bias",
            )
        if not all(isinstance(token, Integral) for token in self.logit_bias):
            raise InvalidRequest("logit_bias keys must be token ids", param="logit_bias")
        if any(not -100 <= bias <= 100 for bias in self.logit_bias.values()):
            raise InvalidRequest(
                "logit_bias values must lie between -100 and 100", param="logit_bias"
            )

    def _make_plain(self) -> None:
        """Numbers of any kind, such as NumPy's, as Python's own: tensors are made of no others."""
        for name, _, _ in _RANGES:
            plain(self, name, int if name == "top_k" else float)
        plain(self, "seed", int)
        if any(type(t) is not int or type(b) is not float for t, b in self.logit_bias.items()):
            biases = {int(token): float(bias) for token, bias in self.logit_bias.items()}
            object.__setattr__(self, "logit_bias", biases)

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the law of later ones."""
        neutral = self.presence_penalty == 0 and self.frequency_penalty == 0
        return not neutral or self.repetition_penalty != 1

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_k", 0, (1 << 31) - 1),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.01, 10.0),
)


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative: the model's own log-probability, before penalties and temperature."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One position: the token that stands there and the ``k`` likeliest, best first."""

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...] = ()
