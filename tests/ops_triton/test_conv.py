"""The causal convolution in its four forms, against the reference."""

from __future__ import annotations

import pytest
import torch
from gdn_cases import (
    SLOTS,
    SOURCES,
    TARGETS,
    Sizes,
    assert_fp32_close,
    make_records,
    reference,
    slots_of,
    watched,
)
from harness import GuardedAllocations, around, assert_close_to_oracle

from ninfer_core.ops.reference import conv as oracle
from ninfer_ops_triton import gdn

SIZES = Sizes(nk=1, nv=3, dk=64, dv=64)
CHANNELS = SIZES.channels
assert CHANNELS % 256, "one block of channels must be partly filled"
DTYPES = [torch.bfloat16, torch.float32]


def assert_close(result, exact, plain):
    law = assert_fp32_close if result.dtype == torch.float32 else assert_close_to_oracle
    law(result, exact, plain)


@pytest.fixture
def case(operands):
    """x of some rows (a view of wider ones), weight and history pool."""

    def make(rows, dtype=torch.bfloat16):
        x = operands.normal(rows, CHANNELS + 32, dtype=dtype)[:, :CHANNELS]
        history = operands.normal(SLOTS, 3, CHANNELS, dtype=dtype)
        return x, operands.normal(4, CHANNELS), history

    return make


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("targets", [TARGETS, SOURCES])
def test_step(case, device, dtype, targets):
    x, weight, history = case(3, dtype)
    history[5] = float("nan")
    args = (x, weight, history, slots_of(device, *SOURCES), slots_of(device, *targets))
    exact = reference(oracle.causal_conv_step, *args, dtype=torch.float64)
    plain = reference(oracle.causal_conv_step, *args)
    with GuardedAllocations():
        result, _, _, history, *_ = watched(gdn.causal_conv_step, *args, pools=(2,))
    assert_close(result, exact[0], plain[0])
    assert torch.equal(history.cpu().nan_to_num(7.0), plain[3].nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [*around(3), *around(8), 21])
def test_chunk(case, device, dtype, tokens):
    x, weight, history = case(tokens, dtype)
    args = (x, weight, history, slots_of(device, 2))
    exact = reference(oracle.causal_conv_chunk, *args, dtype=torch.float64)
    plain = reference(oracle.causal_conv_chunk, *args)
    with GuardedAllocations():
        result, _, _, history, _ = watched(gdn.causal_conv_chunk, *args, pools=(2,))
    assert_close(result, exact[0], plain[0])
    assert torch.equal(history.cpu(), plain[3])


def test_chunk_is_as_many_steps(case, device):
    x, weight, history = case(21)
    slot = slots_of(device, 3)
    stepped = history.clone()
    rows = [gdn.causal_conv_step(row[None], weight, stepped, slot, slot) for row in x]
    whole = gdn.causal_conv_chunk(x, weight, history, slot)
    assert torch.equal(whole, torch.cat(rows))
    assert torch.equal(history, stepped)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_verify_and_fold_leave_what_steps_leave(case, operands, device, width):
    x, weight, history = case(3 * width)
    slots = slots_of(device, *SOURCES)
    records = make_records(operands, SIZES, width + 1, torch.bfloat16)
    before = history.clone()
    with GuardedAllocations():
        verified = gdn.causal_conv_verify(x, weight, history, slots, records)
    assert torch.equal(history, before)
    assert records.inputs[:, width:].isnan().all()
    assert records.inputs[[1, 3, 5, 6]].isnan().all()
    rows = x.view(3, width, CHANNELS) if x.is_contiguous() else x.unflatten(0, (3, width))
    after = [history.clone()]
    for place in range(width):
        after.append(after[-1].clone())
        step = gdn.causal_conv_step(rows[:, place], weight, after[-1], slots, slots)
        assert torch.equal(verified.view(3, width, CHANNELS)[:, place], step)
    counts = [width, 0, width // 2]
    folded, *_ = watched(
        gdn.causal_conv_fold,
        history,
        slots,
        records,
        torch.tensor(counts, dtype=torch.int32, device=device),
        pools=(0,),
    )[1:]
    for source, count in zip(SOURCES, counts, strict=True):
        assert torch.equal(folded[source], after[count][source])
    for other in set(range(SLOTS)) - set(SOURCES):
        assert torch.equal(folded[other], before[other])
    accepted, targets = torch.tensor(counts, dtype=torch.int32), slots_of(device, *TARGETS)
    gdn.causal_conv_fold(history, slots, records, accepted.to(device), targets)
    assert torch.equal(history[TARGETS], folded[SOURCES])
    assert torch.equal(history[SOURCES], before[SOURCES])


def test_rows_do_not_depend_on_each_other(case, device):
    x, weight, history = case(3)
    history[SOURCES[1]] = float("nan")
    slots, targets = slots_of(device, *SOURCES), slots_of(device, *TARGETS)
    together = gdn.causal_conv_step(x, weight, history, slots, targets)
    assert together[1].isnan().all()
    for row in (0, 2):
        one = slice(row, row + 1)
        alone = gdn.causal_conv_step(x[one], weight, history, slots[one], targets[one])
        assert torch.equal(together[one], alone)
        assert bool(alone.isfinite().all())
