"""The fused mixers of the gated delta net: rows verified together and folded are single steps."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.values import GdnMixer, GdnRecords

NK, NV, DK, DV = 1, 3, 16, 32
CHANNELS = 2 * NK * DK + NV * DV
SLOTS, SOURCES, TARGETS = 6, [4, 0], [1, 5]


@pytest.fixture
def mixer(operands):
    return GdnMixer(
        conv=operands.normal(4, CHANNELS), decay_rate=operands.normal(NV).exp(),
        dt_bias=operands.normal(NV), norm_scale=operands.normal(DV), eps=1e-6,
        key_heads=NK, key_size=DK, value_heads=NV, value_size=DV,
    )  # fmt: skip


def pools(operands):
    history, state = operands.normal(SLOTS, 3, CHANNELS), operands.normal(SLOTS, NV, DK, DV)
    history[TARGETS], state[TARGETS] = float("nan"), float("nan")
    return history, state


@pytest.mark.parametrize("width", [1, 2, 5])
def test_verified_rows_are_single_steps(ops, operands, mixer, records, width):
    history, state = pools(operands)
    stacked = operands.normal(2 * width, CHANNELS + NV * DV + 2 * NV)
    slots, targets = torch.tensor(SOURCES), torch.tensor(TARGETS)
    kept = records(SLOTS, width + 1, nk=NK, nv=NV, dk=DK, dv=DV, channels=CHANNELS)
    before = history.clone(), state.clone()
    verified = ops.gdn_mix_verify(stacked, mixer, history, state, slots, kept)
    for now, then in zip((history, state), before, strict=True):
        assert torch.equal(now.nan_to_num(7.0), then.nan_to_num(7.0))
    steps = [(history.clone(), state.clone())]
    for place in range(width):
        own = [pool.clone() for pool in steps[-1]]
        rows = stacked[place::width]
        assert torch.equal(
            ops.gdn_mix_step(rows, mixer, *own, slots, targets), verified[place::width]
        )
        for pool in own:
            pool[SOURCES] = pool[TARGETS]
        steps.append((own[0], own[1]))
    counts = [width, width // 2]
    layers = GdnRecords(kept.inputs[None], kept.keys[None], kept.updates[None], kept.keep[None])
    taken = torch.tensor(counts, dtype=torch.int32)
    ops.gdn_fold_layers(history[None], state[None], slots, layers, taken, targets)
    for place, count in enumerate(counts):
        assert torch.equal(history[TARGETS[place]], steps[count][0][SOURCES[place]])
        assert torch.equal(state[TARGETS[place]], steps[count][1][SOURCES[place]])


def test_each_layer_folds_its_own_records(ops, operands):
    made = [pools(operands) for _ in range(3)]
    history, state = (torch.stack([pair[i] for pair in made]) for i in range(2))
    shapes = [(CHANNELS,), (NK, DK), (NV, DV), (NV,)]
    kept = [operands.normal(3, SLOTS, 2, *shape) for shape in shapes]
    slots, targets = torch.tensor(SOURCES), torch.tensor(TARGETS)
    counts = torch.tensor([2, 1], dtype=torch.int32)
    expected = history.clone(), state.clone()
    for layer in range(3):
        own = GdnRecords(*(pool[layer] for pool in kept))
        ops.causal_conv_fold(expected[0][layer], slots, own, counts, targets)
        ops.gdn_fold(expected[1][layer], slots, own, counts, targets)
    ops.gdn_fold_layers(history, state, slots, GdnRecords(*kept), counts, targets)
    assert torch.equal(history, expected[0])
    assert torch.equal(state, expected[1])
    assert not history.isnan().any()
