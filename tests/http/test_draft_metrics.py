"""The costs of drafts among the metrics."""

from __future__ import annotations

from ninfer_gateway_http.metrics import _draft_costs
from ninfer_gateway_http.metrics_text import MetricsText

COSTS = {"4": {"plain": 5.0, "verify": [5.25, 6.5], "draft": [0.0, 0.75]}}


def test_each_cost_is_a_sample_in_seconds() -> None:
    text = MetricsText()
    _draft_costs(text, COSTS)
    lines = text.render().splitlines()
    name = "ninfer_draft_cost_seconds"
    assert f"# TYPE {name} gauge" in lines
    pairs = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
    samples = {label: float(value) for label, _, value in pairs}
    assert samples == {
        f'{name}{{rows="4",drafts="0",part="plain"}}': 0.005,
        f'{name}{{rows="4",drafts="0",part="verify"}}': 0.00525,
        f'{name}{{rows="4",drafts="1",part="verify"}}': 0.0065,
        f'{name}{{rows="4",drafts="0",part="draft"}}': 0.0,
        f'{name}{{rows="4",drafts="1",part="draft"}}': 0.00075,
    }


def test_costs_of_rounds_that_draw_have_parts_of_their_own() -> None:
    text = MetricsText()
    _draft_costs(text, {"1": COSTS["4"] | {"drawn": {"plain": 6.0, "verify": [6.5, 8.0]}}})
    lines, name = text.render().splitlines(), "ninfer_draft_cost_seconds"
    assert f'{name}{{rows="1",drafts="0",part="drawn_plain"}} 0.006' in lines
    assert f'{name}{{rows="1",drafts="1",part="drawn_verify"}} 0.008' in lines
    assert f'{name}{{rows="1",drafts="1",part="verify"}} 0.0065' in lines
    assert sum(line.startswith(name) for line in lines) == 5 + 3


def test_without_a_drafter_there_is_none() -> None:
    text = MetricsText()
    _draft_costs(text, {})
    assert "draft_cost" not in text.render()
