"""The sampling law in float64, written apart from any backend, and settings to sample by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import SamplingRows
from ninfer_core.ops.reference.rng import uniform

NEUTRAL = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "presence": 0.0,
    "frequency": 0.0, "repetition": 1.0, "seeds": 0, "bias_ids": (), "bias": (),
    "banned_ids": (), "banned_before": 0,
}  # fmt: skip
DTYPES = {
    "top_k": torch.int32, "seeds": torch.int64, "bias_ids": torch.int32,
    "banned_ids": torch.int32, "banned_before": torch.int32,
}  # fmt: skip
CLOSE = 1e-5
"""A number nearer than this to a boundary may fall on either side of it in fp32."""


def settings(device: torch.device, *rows: dict[str, Any], room: int = 0) -> SamplingRows:
    """What is not neutral, per entry; lists are padded to the longest, or to ``room``."""
    columns = {}
    for name, neutral in NEUTRAL.items():
        values: list[Any] = [row.get(name, neutral) for row in rows]
        if isinstance(neutral, tuple):
            unused = 0.0 if name == "bias" else -1
            longest = max(room, *map(len, values))
            values = [[*value, *[unused] * (longest - len(value))] for value in values]
        kind = DTYPES.get(name, torch.float32)
        columns[name] = torch.tensor(values, dtype=kind, device=device)
        if isinstance(neutral, tuple):
            columns[name] = columns[name].view(len(rows), -1)
    return SamplingRows(**columns)


def law_of(logits: Tensor, chosen: dict[str, Any]) -> tuple[Tensor, float]:
    """Law f64[V] of processed logits [V], and how near a cut was to going the other way."""
    filters = NEUTRAL | chosen
    x = logits.detach().cpu().double()
    law = torch.zeros_like(x)
    order = x.argsort(descending=True, stable=True)
    if filters["temperature"] <= 0:
        law[order[0]] = float(x[order[0]].isfinite())
        return law, 1.0
    order = order[: filters["top_k"] or len(order)]
    order = order[x[order] > -torch.inf]
    if not len(order):
        return law, 1.0
    weights = ((x[order] - x[order[0]]) / filters["temperature"]).exp()
    keep, margin = weights >= filters["min_p"], 1.0
    if filters["min_p"]:
        margin = float((weights - filters["min_p"]).abs().min())
    if filters["top_p"] < 1:
        sums = (weights / weights.sum()).cumsum(0)
        keep &= torch.cat([torch.ones(1, dtype=torch.bool), sums[:-1] < filters["top_p"]])
        margin = min(margin, float((sums - filters["top_p"]).abs().min()))
    law[order[keep]] = weights[keep] / weights[keep].sum()
    return law, margin


class Verdicts:
    """Holds drawn tokens against the law; what rounding may decide either way is only counted."""

    def __init__(self) -> None:
        self.seen = self.close = 0

    def check(
        self, token: int, logits: Tensor, chosen: dict[str, Any], position: int, purpose: int
    ) -> None:
        law, margin = law_of(logits, chosen)
        sums = law.cumsum(0)
        number = float(
            uniform(
                torch.tensor([chosen.get("seeds", 0)]),
                torch.tensor([position], dtype=torch.int32),
                purpose,
            )
        )
        expected = int(torch.searchsorted(sums, number * float(sums[-1]), right=True)) % len(law)
        margin = min(margin, float((sums - number).abs().min()))
        self.seen += 1
        if margin < CLOSE and chosen.get("temperature", 1.0) > 0:
            self.close += 1
            return
        assert token == expected, f"{token}, not {expected}: {chosen} at {position}, u {number}"
