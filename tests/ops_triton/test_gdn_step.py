"""Gates, step, verify, fold and the fused mixer, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from gdn_cases import (
    SLOTS,
    SOURCES,
    TARGETS,
    Sizes,
    assert_fp32_close,
    gates_of,
    make_mixer,
    make_pools,
    make_records,
    reference,
    slots_of,
    watched,
)
from harness import GuardedAllocations, assert_close_to_oracle

from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import fused, gdn_chunk
from ninfer_core.ops.reference import gdn as oracle
from ninfer_ops_triton import gdn

BF16 = torch.bfloat16
SHAPES = [Sizes(2, 4), Sizes(1, 3, 16, 32)]


@pytest.mark.parametrize("rows", [1, 3, 400])
def test_gates(operands, rows):
    both = operands.normal(rows, 6, dtype=BF16, scale=12.0)
    a, b = both[:, 3:], both[:, :3]
    args = (a, b, operands.normal(3).exp(), operands.normal(3))
    exact = reference(oracle.gdn_gates, *args, dtype=torch.float64)[0]
    plain = reference(oracle.gdn_gates, *args)[0]
    with GuardedAllocations():
        result = gdn.gdn_gates(*args)
    for got, want, base in zip(result, exact, plain, strict=True):
        assert_fp32_close(got, want, base)


def test_gates_keep_the_smallest_decays(device):
    """softplus(-30) is exp(-30), which ``1 + exp(x)`` would lose."""
    a = torch.tensor([[-30.0, -12.0, 30.0]], dtype=BF16, device=device)
    rate, bias = torch.ones(3, device=device), torch.zeros(3, device=device)
    decay, _ = gdn.gdn_gates(a, a, rate, bias)
    exact = -torch.nn.functional.softplus(a.cpu().double())
    assert torch.allclose(decay.cpu().double(), exact, rtol=2e-5, atol=0.0)


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("targets", [TARGETS, SOURCES])
def test_step(operands, device, sizes, targets):
    qkv = operands.normal(3, sizes.channels, dtype=BF16)
    decay, beta = gates_of(operands, 3, sizes.nv)
    _, state = make_pools(operands, sizes, BF16)
    state[5] = float("nan")
    slots = (slots_of(device, *SOURCES), slots_of(device, *targets))
    args = (qkv, decay, beta, state, *slots, sizes.nk)
    exact = reference(oracle.gdn_step, *args, dtype=torch.float64)
    plain = reference(oracle.gdn_step, *args)
    with GuardedAllocations():
        after = watched(gdn.gdn_step, *args, pools=(3,))
    assert_fp32_close(after[0], exact[0], plain[0])
    assert_fp32_close(after[4][targets], exact[4][targets], plain[4][targets])
    unread = sorted(set(range(SLOTS)) - set(targets))
    assert torch.equal(after[4][unread].nan_to_num(7.0), state[unread].nan_to_num(7.0))


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("sizes", SHAPES)
def test_verify_and_fold_leave_what_steps_leave(operands, device, sizes, width):
    qkv = operands.normal(3 * width, sizes.channels, dtype=BF16)
    decay, beta = gates_of(operands, 3 * width, sizes.nv)
    _, state = make_pools(operands, sizes, BF16)
    slots = slots_of(device, *SOURCES)
    records = make_records(operands, sizes, width + 1, BF16)
    before = state.clone()
    with GuardedAllocations():
        verified = gdn.gdn_verify(qkv, decay, beta, state, slots, sizes.nk, records)
    assert torch.equal(state, before)
    for pool in (records.keys, records.updates, records.keep):
        assert bool(pool[SOURCES, :width].isfinite().all())
        assert bool(pool[:, width:].isnan().all())
        assert bool(pool[[1, 3, 5, 6]].isnan().all())
    after = [state.clone()]
    for place in range(width):
        rows = slice(place, None, width)
        after.append(after[-1].clone())
        step = gdn.gdn_step(qkv[rows], decay[rows], beta[rows], after[-1], slots, slots, sizes.nk)
        assert torch.equal(verified[rows], step)
    counts = [width, 0, (width + 1) // 2]
    folded = watched(
        gdn.gdn_fold,
        state,
        slots,
        records,
        torch.tensor(counts, dtype=torch.int32, device=device),
        pools=(0,),
    )[1]
    for source, count in zip(SOURCES, counts, strict=True):
        assert torch.equal(folded[source], after[count][source])
    for other in set(range(SLOTS)) - set(SOURCES):
        assert torch.equal(folded[other], before[other])
    accepted, targets = torch.tensor(counts, dtype=torch.int32), slots_of(device, *TARGETS)
    gdn.gdn_fold(state, slots, records, accepted.to(device), targets)
    assert torch.equal(state[TARGETS], folded[SOURCES])
    assert torch.equal(state[SOURCES], before[SOURCES])


@pytest.fixture
def mix(operands, device):
    """Arguments of the fused mixer for three sequences."""

    def make(sizes, dtype=BF16):
        stacked = operands.normal(3, sizes.width, dtype=dtype)
        history, state = make_pools(operands, sizes, dtype)
        slots = (slots_of(device, *SOURCES), slots_of(device, *TARGETS))
        return (stacked, make_mixer(operands, sizes), history, state, *slots)

    return make


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("sizes", SHAPES)
def test_mixer(mix, sizes, dtype):
    args = mix(sizes, dtype)
    # Targets are written whole, whatever they held.
    args[2][TARGETS], args[3][TARGETS] = float("nan"), float("nan")
    exact = reference(fused.gdn_mix_step, *args, dtype=torch.float64)
    plain = reference(fused.gdn_mix_step, *args)
    with GuardedAllocations():
        result, _, _, history, state, *_ = watched(gdn.gdn_mix_step, *args, pools=(2, 3))
    assert torch.equal(history.cpu().nan_to_num(7.0), plain[3].nan_to_num(7.0))
    written = [pool[TARGETS].cpu() for pool in (state, exact[4], plain[4])]
    if dtype == BF16:
        # The oracle does not round the convolution's output; that is many units of the state.
        assert_close_to_oracle(result, exact[0], plain[0])
        assert_close_to_oracle(*written, ulps=1e9)
    else:
        assert_fp32_close(result, exact[0], plain[0])
        assert_fp32_close(*written)


def test_mixer_may_load_a_settled_state_early(mix):
    args = mix(SHAPES[1])
    late = gdn.gdn_mix_step(*args)
    assert torch.equal(gdn.gdn_mix_step(*args, settled=True), late)


def test_mixer_is_its_parts(mix):
    """The state is that of the standalone ops to the bit, so that speculation may change between
    them."""
    sizes = SHAPES[0]
    stacked, mixer, history, state, slots, targets = mix(sizes)
    values = sizes.nv * sizes.dv
    mixed, _, b, a = stacked.split([sizes.channels, values, sizes.nv, sizes.nv], dim=1)
    histories, states = history.clone(), state.clone()
    decay, beta = gdn.gdn_gates(a, b, mixer.decay_rate, mixer.dt_bias)
    qkv = gdn.causal_conv_step(mixed, mixer.conv, histories, slots, targets)
    gdn.gdn_step(qkv, decay, beta, states, slots, targets, sizes.nk)
    gdn.gdn_mix_step(stacked, mixer, history, state, slots, targets)
    assert torch.equal(history, histories)
    assert torch.equal(state, states)


def test_mixer_rows_do_not_depend_on_each_other(mix):
    stacked, mixer, history, state, slots, targets = mix(SHAPES[0])
    state[SOURCES[1]] = float("nan")
    pools = history.clone(), state.clone()
    together = gdn.gdn_mix_step(stacked, mixer, *pools, slots, targets)
    assert together[1].isnan().all()
    for row in (0, 2):
        one = slice(row, row + 1)
        alone = gdn.gdn_mix_step(stacked[one], mixer, history, state, slots[one], targets[one])
        assert bool(alone.isfinite().all())
        assert torch.equal(together[one], alone)
        assert torch.equal(pools[0][TARGETS[row]], history[TARGETS[row]])
        assert torch.equal(pools[1][TARGETS[row]], state[TARGETS[row]])


def test_sizes_that_do_not_fit_are_refused(operands):
    with pytest.raises(OpError, match="key_size is 96"):
        gdn.state_sizes(operands.empty(1, 2, 96, 128), 1)
    with pytest.raises(OpError, match="value_heads 3"):
        gdn.state_sizes(operands.empty(1, 3, 64, 64), 2)


def test_chunk_form_of_the_reference_agrees_with_steps(operands, device):
    """What the chunk kernels are held against is the same recurrence."""
    sizes = SHAPES[1]
    qkv = operands.normal(70, sizes.channels).double().cpu()
    decay, beta = (x.double().cpu() for x in gates_of(operands, 70, sizes.nv))
    _, state = make_pools(operands, sizes, BF16)
    chunked, stepped = state.double().cpu(), state.double().cpu()
    slot = torch.tensor([2])
    whole = gdn_chunk.gdn_chunk(qkv, decay, beta, chunked, slot, sizes.nk)
    rows = [
        oracle.gdn_step(qkv[i : i + 1], decay[i : i + 1], beta[i : i + 1], stepped, slot, slot, 1)
        for i in range(70)
    ]
    assert torch.allclose(whole, torch.cat(rows))
    assert torch.allclose(chunked, stepped)
