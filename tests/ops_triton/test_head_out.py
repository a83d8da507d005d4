"""Logits written where the caller keeps them."""

from __future__ import annotations

import pytest
import torch
from matrices import EPS, matrix

from ninfer_core.ops.contracts.values import Stream
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import OPS
from ninfer_ops_triton import heads
from ninfer_ops_triton.streams import open_stream


@pytest.mark.parametrize("kind", ["bf16", "q4"])
def test_the_head_fills_the_rows_that_it_is_given_and_no_others(operands, kind) -> None:
    weight, _ = matrix(operands, kind, 33, 256)
    x, scale = operands.normal(3, 256, dtype=torch.bfloat16), operands.normal(256)
    room = torch.full((5, 33), 7.0, device=x.device)
    stream = open_stream(x, scale)
    made = heads.norm_head(stream, EPS, weight, 30, room[1:4])
    assert made.data_ptr() == room[1:4].data_ptr()
    assert torch.equal(room[1:4], heads.norm_head(stream, EPS, weight, 30))
    assert (room[[0, 4]] == 7).all()


@pytest.mark.parametrize(
    "made",
    [
        lambda **place: torch.empty(3, 32, **place),
        lambda **place: torch.empty(2, 33, **place),
        lambda **place: torch.empty(3, 33, **place).double(),
        lambda **place: torch.empty(3, 66, **place)[:, ::2],
    ],
)
def test_room_of_another_shape_is_refused(operands, made) -> None:
    weight, _ = matrix(operands, "bf16", 33, 256)
    x, scale = operands.normal(3, 256, dtype=torch.bfloat16), operands.normal(256)
    with pytest.raises(OpError, match=r"out is torch.float\d+\[.*must be torch.float32\[3, 33\]"):
        heads.norm_head(open_stream(x, scale), EPS, weight, 30, made(device=x.device))


def test_the_reference_fills_them_too(operands) -> None:
    weight, _ = matrix(operands, "bf16", 33, 256)
    stream = Stream(operands.normal(3, 256).cpu(), operands.normal(256).cpu())
    plain = OPS.prepare_linear(weight) if weight.planes["weight"].device.type == "cpu" else None
    if plain is None:
        pytest.skip("the reference runs on the CPU")
    room = torch.zeros(3, 33)
    assert OPS.norm_head(stream, EPS, plain, 30, room) is room
    assert torch.equal(room, OPS.norm_head(stream, EPS, plain, 30))
    assert (room[:, 30:] == -torch.inf).all()
