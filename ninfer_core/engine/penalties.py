"""Penalties of a checkpoint's preset, which answers with a form are better off without.

A penalty lowers every token that the answer has used already, among them the quotes, commas and
brackets that its form needs again and again: under a mask the next best is taken then, and values
are spoiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.sampling import SamplingParams

_NEUTRAL = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


def for_form(
    sampling: SamplingParams, preset: SamplingParams, prepared: PreparedPrompt
) -> tuple[SamplingParams, tuple[str, ...]]:
    """``sampling`` without those penalties that are the preset's own, if the answer has a form, and
    a note that says so. Any other value was asked for and stays."""
    asked, choice = prepared.request.response_format, prepared.request.tool_choice
    if prepared.grammar is None or (asked.kind == "text" and choice.mode in ("auto", "none")):
        return sampling, ()
    dropped: dict[str, Any] = {
        name: neutral
        for name, neutral in _NEUTRAL.items()
        if getattr(sampling, name) == getattr(preset, name) != neutral
    }
    if not dropped:
        return sampling, ()
    names = " and ".join(f"{name} {getattr(preset, name):g}" for name in dropped)
    note = f"the model's preset {names} is not applied to an answer with a form"
    return replace(sampling, **dropped), (note,)
