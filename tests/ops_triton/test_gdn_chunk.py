"""The delta rule in chunks, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from gdn_cases import SLOTS, Sizes, gates_of, make_pools, reference, slots_of, watched
from harness import GuardedAllocations, around, relative_error
from torch.nn.functional import silu

from ninfer_core.ops.reference import gdn_chunk as oracle
from ninfer_ops_triton import gdn, gdn_prefill

LIMITS = {torch.bfloat16: 3e-5, torch.float16: 3e-5, torch.float32: 5e-6}
"""Relative errors. Pairs of 16-bit factors keep 16 bits; torch in fp32 is off by up to 1e-6."""
SLOT = 2
SMALL = Sizes(1, 2, 16, 32)


@pytest.fixture
def case(operands, device):
    """Arguments for n tokens, rows of qkv a view of wider ones."""

    def make(sizes, tokens, dtype=torch.bfloat16):
        wide = silu(operands.normal(tokens, sizes.channels + 16)).to(dtype)
        _, state = make_pools(operands, sizes, dtype)
        gates = gates_of(operands, tokens, sizes.nv)
        return [wide[:, : sizes.channels], *gates, state * 0.3, slots_of(device, SLOT), sizes.nk]

    return make


def check(args, limit=None):
    """Hold output and state against the oracle, and that nothing else was touched."""
    limit = limit or LIMITS[args[0].dtype]
    exact = reference(oracle.gdn_chunk, *args, dtype=torch.float64)
    plain = reference(oracle.gdn_chunk, *args)
    # Sums of large decays lose digits in fp32 in any implementation.
    limit += 2 * relative_error(plain[4][SLOT], exact[4][SLOT])
    before = args[3].clone()
    with GuardedAllocations():
        after = watched(gdn_prefill.gdn_chunk, *args, pools=(3,))
    assert after[0].dtype == torch.float32
    assert relative_error(after[0].cpu(), exact[0]) <= limit
    assert relative_error(after[4][SLOT].cpu(), exact[4][SLOT]) <= limit
    others = [slot for slot in range(SLOTS) if slot != SLOT]
    assert torch.equal(after[4][others].nan_to_num(7.0), before[others].nan_to_num(7.0))
    return after[0]


@pytest.mark.parametrize("tokens", [*around(64, interior=(2, 3)), 130])
def test_lengths(case, tokens):
    check(case(Sizes(1, 2), tokens))


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_dtypes_and_shared_keys(case, dtype):
    check(case(Sizes(2, 6, 32, 16), 70, dtype))


def test_other_slots_do_not_matter(case):
    args = case(SMALL, 65)
    args[3][[0, 1, 3, 4, 5, 6]] = float("nan")
    assert bool(check(args).isfinite().all())


def test_repeated_keys(case):
    """Without decay, with beta near 1 and one key all along, powers of the triangle would overflow
    what fp32 holds apart. The terms of a row of T nearly
    cancel, their roundings to 16 bits do not."""
    args = case(SMALL, 128)
    args[0] = args[0][:1].expand(128, -1)
    args[1], args[2] = torch.zeros_like(args[1]), torch.full_like(args[2], 0.999)
    check(args, 3e-4)


def test_decays_that_underflow(case):
    args = case(SMALL, 100)
    args[1] = args[1] * 30.0
    assert bool(check(args).isfinite().all())


def test_zero_keys(case):
    args = case(SMALL, 66)
    args[0] = args[0].clone()
    args[0][3:40, : 2 * SMALL.dk] = 0.0
    assert bool(check(args).isfinite().all())


def test_segments_do_not_show(case, monkeypatch):
    args = case(SMALL, 200)
    whole = [args[3].clone(), args[3].clone()]
    outputs = [gdn_prefill.gdn_chunk(*args[:3], whole[0], *args[4:])]
    monkeypatch.setattr(gdn_prefill, "_SEGMENT", 128)
    outputs.append(gdn_prefill.gdn_chunk(*args[:3], whole[1], *args[4:]))
    assert torch.equal(*outputs)
    assert torch.equal(*whole)


def test_two_calls_continue_each_other_and_steps_agree(case, device):
    """The state that a chunk leaves is one that steps take up."""
    qkv, decay, beta, state, slot, nk = case(SMALL, 80)
    once, twice = state.clone(), state.clone()
    whole = gdn_prefill.gdn_chunk(qkv, decay, beta, once, slot, nk)
    gdn_prefill.gdn_chunk(qkv[:77], decay[:77], beta[:77], twice, slot, nk)
    for row in range(77, 80):
        one = slice(row, row + 1)
        step = gdn.gdn_step(qkv[one], decay[one], beta[one], twice, slot, slot, nk)
        assert relative_error(step, whole[one]) <= 1e-4
    assert relative_error(twice[SLOT], once[SLOT]) <= 1e-4
