"""What draws, laws, lists and acceptance need beside the logits is what is planned for them."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ninfer_core.ops.contracts.values import DraftLaw, DrawPurpose, TokenCounts
from ninfer_core.ops.reference import OPS
from ninfer_ops_triton import draws, sampling
from ninfer_qwen3_5.program.queued import round_room
from tests.ops_triton.laws import settings

SETTING = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.01}


class Peak(TorchDispatchMode):
    """The most bytes of tensors at once that were made inside."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if size and place not in self._seen:
            self._seen.add(place)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self._seen.discard(place)
        self.live -= size


def drawn(device: torch.device, rows: int, vocab: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return (3 * torch.randn(rows, vocab, generator=generator)).to(device)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 24])
def test_lists_of_any_number_of_rows_are_those_of_the_reference(device, count) -> None:
    logits = drawn(device, count, 700)
    tokens = torch.arange(count, dtype=torch.int32, device=device)
    made = sampling.logprobs(logits, tokens, 5)
    listed = OPS.logprobs(logits.cpu(), tokens.cpu(), 5)
    assert torch.equal(made.top_ids.cpu(), listed.top_ids)
    torch.testing.assert_close(made.chosen.cpu(), listed.chosen)
    torch.testing.assert_close(made.top_values.cpu(), listed.top_values)


def test_settings_of_a_sequence_hold_for_all_its_rows(device) -> None:
    logits, chosen = drawn(device, 12, 300), [SETTING | {"top_k": 1 + 9 * n} for n in range(3)]
    law = sampling.sampling_law(logits, settings(device, *chosen)).cpu()
    assert (law[:4] > 0).sum(1).tolist() == [1] * 4
    expected = OPS.sampling_law(logits.cpu(), settings(torch.device("cpu"), *chosen))
    torch.testing.assert_close(law, expected, rtol=1e-5, atol=1e-7)


def test_the_plan_knows_how_many_rows_are_listed_at_a_time() -> None:
    assert sampling.AT_ONCE == round_room.AT_ONCE


def test_laws_take_what_was_planned(device) -> None:
    vocab, count = 1 << 13, 6
    logits, rows = drawn(device, count, vocab), settings(device, *[SETTING] * 3)
    with Peak(logits) as made:
        law = sampling.sampling_law(logits, rows)
    planned = count * (4 * vocab + round_room.SUMMARY)
    assert 0.8 * planned < made.peak < planned
    assert law.sum(1).cpu().allclose(torch.ones(count))


def test_draws_take_what_was_planned(device) -> None:
    vocab, count = 1 << 13, 6
    logits, rows = drawn(device, count, vocab), settings(device, *[SETTING] * count)
    generated = torch.zeros(count, vocab, dtype=torch.int32, device=device)
    counts = TokenCounts(generated, generated > 1)
    lanes = torch.arange(count, device=device)
    positions = lanes.int()
    with Peak(logits, counts.generated, counts.prompt) as made:
        draws.draw_rows(logits, vocab, rows, counts, lanes, positions, DrawPurpose.DECODE)
    planned = count * (4 * vocab + round_room.SUMMARY)
    assert 0.8 * planned < made.peak < planned


def test_lists_take_what_was_planned(device) -> None:
    vocab, count = 1 << 16, 24
    logits = drawn(device, count, vocab)
    tokens = torch.zeros(count, dtype=torch.int32, device=device)
    with Peak(logits) as made:
        sampling.logprobs(logits, tokens, 20)
    planned = vocab * round_room.AT_ONCE * round_room.LISTED
    assert 0.8 * planned < made.peak < planned


def test_trying_drafts_takes_what_was_planned(device) -> None:
    vocab, count, most = 1 << 15, 3, 7
    laws = drawn(device, count * (most + 1), vocab).softmax(1)
    ids = torch.arange(64, dtype=torch.int32, device=device).expand(count, most, 64)
    law = DraftLaw(ids, torch.full((count, most, 64), 1 / 64, device=device))
    drafts = torch.zeros(count, most, dtype=torch.int32, device=device)
    live = torch.full((count,), most, device=device)
    seeds = torch.zeros(count, dtype=torch.int64, device=device)
    positions = torch.arange(count * (most + 1), device=device)
    with Peak(laws) as made:
        sampling.accept_drafts(laws, drafts, live, law, seeds, positions.int())
    assert made.peak < vocab * count * round_room.TESTED
