"""What a prompt sends to a device with a queue: positions of its tokens, settings of its row."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ninfer_core.contract.checkpoints import OutputRules
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.cpu import open_device
from ninfer_core.ops.contracts.values import SamplingRows
from ninfer_qwen3_5.program.positions import rotary_positions, write_positions
from ninfer_qwen3_5.program.queued.lanes import LaneSizes, LaneState


def sequence(length=6, positions=None, delta=0, row=0, sampling=None, rules=None):
    prepared = SimpleNamespace(
        length=length,
        positions=positions,
        rope_delta=delta,
        token_ids=np.arange(length, dtype=np.int32),
    )
    request = SimpleNamespace(
        prepared=prepared,
        sampling=sampling or SamplingParams(temperature=0.0, seed=0),
        rules=rules or OutputRules(max_new_tokens=4),
    )
    return SimpleNamespace(row=row, request=request, generated=[], prompt_length=length)


OWN = np.array([[0, 1, 1, 1, 3, 4], [0, 1, 1, 2, 3, 4], [0, 1, 2, 1, 3, 4]], dtype=np.int32)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 3, [[0, 1, 1], [0, 1, 1], [0, 1, 2]]),
        (2, 5, [[1, 1, 3], [1, 2, 3], [2, 1, 3]]),
        # Behind the prompt's six tokens position 6 is 5, since the last of the prompt is 4.
        (4, 8, [[3, 4, 5, 6]] * 3),
        (6, 8, [[5, 6]] * 3),
        (9, 10, [[8]] * 3),
    ],
)
def test_positions_are_the_prompts_own_and_go_on_behind_it(start, stop, expected) -> None:
    asked = sequence(positions=OWN, delta=-1)
    assert rotary_positions(asked, start, stop).tolist() == expected
    words = np.full(3 * (stop - start) + 2, 77, dtype=np.int32)
    write_positions(asked, start, stop, words[1:-1].reshape(3, -1))
    assert words[1:-1].reshape(3, -1).tolist() == expected
    assert (words[0], words[-1]) == (77, 77)


def test_positions_of_plain_text_count_on() -> None:
    places = rotary_positions(sequence(), 4, 8)
    assert places.dtype == torch.int32
    assert places.tolist() == [[4, 5, 6, 7]] * 3


@pytest.fixture
def lanes():
    device, sizes = open_device(), LaneSizes(2, 3, 40)
    arena = device.arena("tables", sizes.device_bytes())
    return LaneState(sizes, 10, device, arena, device.pinned("round", sizes.pinned_bytes()))


PLAIN = SamplingParams(temperature=0.0, seed=0)
WARM = SamplingParams(
    temperature=0.5, top_k=7, top_p=0.75, min_p=0.25, seed=11, presence_penalty=0.5,
    frequency_penalty=-0.5, repetition_penalty=1.5, logit_bias={3: 1.0, 9: -2.0},
)  # fmt: skip
LATE = OutputRules(max_new_tokens=4, min_tokens=2, suppressed_until_min=frozenset({5, 4}))


def held(lanes: LaneState, row: int) -> dict[str, object]:
    values = {name: getattr(lanes.settings, name)[row].tolist() for name in NAMES}
    for name in ("bias_ids", "banned_ids"):
        values[name] = [entry for entry in values[name] if entry != -1]
    values["bias"] = values["bias"][: len(values["bias_ids"])]
    return values


NAMES = [field.name for field in fields(SamplingRows)]
EXPECTED = {
    "plain": {
        "temperature": 0.0,
        "top_k": PLAIN.top_k,
        "top_p": 1.0,
        "min_p": 0.0,
        "presence": 0.0,
        "frequency": 0.0,
        "repetition": 1.0,
        "seeds": 0,
        "bias_ids": [],
        "bias": [],
        "banned_ids": [],
        "banned_before": 6,
    },
    "warm": {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.75,
        "min_p": 0.25,
        "presence": 0.5,
        "frequency": -0.5,
        "repetition": 1.5,
        "seeds": 11,
        "bias_ids": [3, 9],
        "bias": [1.0, -2.0],
        "banned_ids": [4, 5],
        "banned_before": 8,
    },
}
KINDS = {"plain": (PLAIN, OutputRules(max_new_tokens=4)), "warm": (WARM, LATE)}


@pytest.mark.parametrize(
    "order", [["plain"], ["warm", "plain"], ["plain", "warm", "warm"], ["warm", "plain", "warm"]]
)
def test_a_row_has_the_settings_of_whom_it_was_given_last(lanes, order) -> None:
    before = held(lanes, 1)
    for kind in order:
        sampling, rules = KINDS[kind]
        lanes.admit(sequence(sampling=sampling, rules=rules))
        assert held(lanes, 0) == EXPECTED[kind]
    assert held(lanes, 1) == before


def test_only_what_changed_is_sent(lanes) -> None:
    """A value that the device lost stays lost until the host has another one."""
    lanes.admit(sequence())
    for name in NAMES:
        getattr(lanes.settings, name)[0].zero_()
    lanes.admit(sequence(length=9))
    assert lanes.settings.repetition[0] == 0.0
    assert lanes.settings.banned_before[0] == 9
