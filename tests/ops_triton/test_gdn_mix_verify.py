"""The fused mixer over rows that may not be kept, and the fold of all layers."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from gdn_cases import (
    SLOTS,
    SOURCES,
    TARGETS,
    Sizes,
    assert_fp32_close,
    make_mixer,
    make_pools,
    make_records,
    reference,
    slots_of,
    watched,
)
from harness import GuardedAllocations, Operands, assert_close_to_oracle

from ninfer_core.ops.contracts.values import GdnRecords
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import fused
from ninfer_ops_triton import gdn

BF16 = torch.bfloat16
SHAPES = [Sizes(2, 4), Sizes(1, 3, 16, 32)]
SMALL = SHAPES[1]
SPARE = 5
"""A slot that is neither source nor target."""


def make_case(operands, sizes, width, dtype=BF16, room=1):
    """Operands of the op for three sequences; records hold ``room`` rows more than are verified."""
    stacked = operands.normal(3 * width, sizes.width, dtype=dtype)
    history, state = make_pools(operands, sizes, dtype)
    history[TARGETS], state[TARGETS] = float("nan"), float("nan")
    records = make_records(operands, sizes, width + room, dtype)
    mixer = make_mixer(operands, sizes)
    return stacked, mixer, history, state, slots_of(operands.device, *SOURCES), records


def stepped(stacked, mixer, history, state, slots, records):
    """Outputs of W single steps, and history and state before and after each of them."""
    width = stacked.shape[0] // len(slots)
    pools = [(history.clone(), state.clone())]
    out = torch.empty_like(stacked[:, : mixer.value_heads * mixer.value_size])
    there, targets = slots, slots_of(stacked.device, *TARGETS)
    for place in range(width):
        own = [pool.clone() for pool in pools[-1]]
        rows = slice(place, None, width)
        out[rows] = gdn.gdn_mix_step(stacked[rows].contiguous(), mixer, *own, there, targets)
        for pool in own:
            pool[slots] = pool[targets]
        pools.append((own[0], own[1]))
    return out, pools


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("sizes", SHAPES)
def test_rows_have_the_bits_of_single_steps(operands, sizes, width):
    case = make_case(operands, sizes, width)
    expected, pools = stepped(*case)
    history, state, records = case[2].clone(), case[3].clone(), case[5]
    with GuardedAllocations():
        result = gdn.gdn_mix_verify(*case)
    assert torch.equal(result, expected)
    for now, before in ((case[2], history), (case[3], state)):
        assert torch.equal(now.nan_to_num(7.0), before.nan_to_num(7.0))
    for name in (field.name for field in fields(GdnRecords)):
        pool = getattr(records, name)
        assert bool(pool[SOURCES, :width].isfinite().all()), name
        assert bool(pool[:, width:].isnan().all()), name
        assert bool(pool[[s for s in range(SLOTS) if s not in SOURCES]].isnan().all()), name
    counts = torch.tensor([width, 0, (width + 1) // 2], dtype=torch.int32, device=state.device)
    gdn.causal_conv_fold(case[2], case[4], records, counts)
    gdn.gdn_fold(case[3], case[4], records, counts)
    for source, count in zip(SOURCES, counts.tolist(), strict=True):
        assert torch.equal(case[2][source], pools[count][0][source])
        assert torch.equal(case[3][source], pools[count][1][source])


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_rows_against_float64(operands, dtype):
    case = make_case(operands, SMALL, 3, dtype)
    case[2][TARGETS], case[3][TARGETS] = 0.0, 0.0
    exact = reference(fused.gdn_mix_verify, *case, dtype=torch.float64)
    plain = reference(fused.gdn_mix_verify, *case)
    result = gdn.gdn_mix_verify(*case)
    if dtype == BF16:
        assert_close_to_oracle(result, exact[0], plain[0])
    else:
        assert_fp32_close(result, exact[0], plain[0])


def test_records_are_those_of_the_parts(operands):
    """What other ops fold."""
    case = make_case(operands, SMALL, 3)
    stacked, mixer, history, state, slots, records = case
    gdn.gdn_mix_verify(*case)
    own = make_records(operands, SMALL, 4, BF16)
    values = SMALL.nv * SMALL.dv
    mixed, _, b, a = stacked.split([SMALL.channels, values, SMALL.nv, SMALL.nv], dim=1)
    decay, beta = gdn.gdn_gates(a, b, mixer.decay_rate, mixer.dt_bias)
    qkv = gdn.causal_conv_verify(mixed, mixer.conv, history, slots, own)
    gdn.gdn_verify(qkv, decay, beta, state, slots, SMALL.nk, own)
    for field in fields(GdnRecords):
        one, two = getattr(records, field.name), getattr(own, field.name)
        assert torch.equal(one.nan_to_num(7.0), two.nan_to_num(7.0)), field.name


def test_a_settled_state_and_company_change_no_bits(operands):
    case = make_case(operands, SMALL, 2)
    whole = gdn.gdn_mix_verify(*case)
    assert torch.equal(gdn.gdn_mix_verify(*case, settled=True), whole)
    stacked, mixer, history, state, slots, records = case
    state[SOURCES[1]] = float("nan")
    stacked[5] = float("nan")
    broken = gdn.gdn_mix_verify(*case)
    assert torch.equal(broken[:2], whole[:2])
    assert broken[2:4].isnan().all()
    assert torch.equal(broken[4], whole[4])
    assert broken[5].isnan().all()
    alone = gdn.gdn_mix_verify(stacked[4:], mixer, history, state, slots[2:], records)
    assert torch.equal(alone[0], whole[4])


def test_rows_that_records_do_not_hold_are_refused(operands):
    case = make_case(operands, SMALL, 2, room=-1)
    with pytest.raises(OpError, match="6 rows for 3 sequences; records hold 1 to 1"):
        gdn.gdn_mix_verify(*case)


def layered(operands, sizes, layers, width):
    """History, state and records of some layers, random in every slot that is read."""
    pools = [make_pools(operands, sizes, BF16) for _ in range(layers)]
    history, state = (torch.stack([pair[i] for pair in pools]) for i in range(2))
    history[:, [*TARGETS, SPARE]], state[:, [*TARGETS, SPARE]] = float("nan"), float("nan")
    shapes = (
        (sizes.channels,), (sizes.nk, sizes.dk), (sizes.nv, sizes.dv), (sizes.nv,)
    )  # fmt: skip
    kept = [
        operands.normal(layers, SLOTS, width, *shape, dtype=BF16 if place == 0 else torch.float32)
        for place, shape in enumerate(shapes)
    ]
    for pool in kept:
        pool[:, [*TARGETS, SPARE]] = float("nan")
    return history, state, GdnRecords(*kept)


@pytest.mark.parametrize(
    ("sizes", "places"), [(SHAPES[0], TARGETS), (SMALL, TARGETS), (SMALL, SOURCES)]
)
def test_all_layers_fold_as_each_alone(operands, device, sizes, places):
    history, state, records = layered(operands, sizes, 2, 4)
    slots, targets = slots_of(device, *SOURCES), slots_of(device, *places)
    counts = torch.tensor([4, 0, 2], dtype=torch.int32, device=device)
    # What lies beyond the accepted rows is never read.
    for pool in (records.inputs, records.keys, records.updates, records.keep):
        pool[:, SOURCES[1]], pool[:, SOURCES[2], 2:] = float("nan"), float("nan")
    expected = [history.clone(), state.clone()]
    for layer in range(2):
        own = GdnRecords(*(getattr(records, f.name)[layer] for f in fields(GdnRecords)))
        gdn.causal_conv_fold(expected[0][layer], slots, own, counts, targets)
        gdn.gdn_fold(expected[1][layer], slots, own, counts, targets)
    args = history, state, slots, records, counts, targets
    _, history, state, *_ = watched(gdn.gdn_fold_layers, *args, pools=(0, 1))
    for now, then in ((history, expected[0]), (state, expected[1])):
        assert bool(now[:, places].isfinite().all())
        assert torch.equal(now.nan_to_num(7.0), then.nan_to_num(7.0))


def test_layers_that_do_not_agree_are_refused(operands, device):
    history, state, records = layered(operands, SMALL, 2, 1)
    counts = torch.zeros(3, dtype=torch.int32, device=device)
    slots, targets = slots_of(device, *SOURCES), slots_of(device, *TARGETS)
    with pytest.raises(OpError, match="state has 2 layers"):
        gdn.gdn_fold_layers(history[:1], state, slots, records, counts, targets)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [Sizes(16, 16), Sizes(16, 32), Sizes(16, 48)])
def test_geometries_of_the_family(sizes):
    operands = Operands(3, "cuda")
    for width in (1, 2, 4, 8, 16):
        case = make_case(operands, sizes, width)
        expected, _ = stepped(*case)
        for settled in (False, True):
            assert torch.equal(gdn.gdn_mix_verify(*case, settled=settled), expected)
