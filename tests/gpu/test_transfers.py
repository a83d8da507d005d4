"""Pages and state images through pinned memory: on the copy lanes, under traffic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device import strided
from ninfer_core.device.base import LaneRole
from ninfer_core.ops.contracts.values import KvCache
from ninfer_core.store.host_arena import HostArena
from ninfer_qwen3_5.model.state import GdnState, ModelState
from ninfer_qwen3_5.program.transfers import Transfers, page_planes, slot_planes

PAGES, SLOTS, LAYERS, MOST = 600, 12, 8, 256
SLEEP = 50_000_000
"""Clock cycles of a kernel that does nothing: some tens of milliseconds."""
WAIT = 120.0


class World:
    """Planes of a model in shape, pinned memory for 300 pages and two states, and the transfers."""

    def __init__(self, device) -> None:
        from ninfer_ops_triton.backend import BACKEND

        where = device.torch_device
        history = torch.randn(LAYERS, SLOTS, 3, 2048, device=where).bfloat16()
        recurrent = torch.randn(LAYERS, SLOTS, 8, 128, 128, device=where)
        kv = device.arena("kv", LAYERS * PAGES * 64 * 2 * (128 + 8) + (1 << 20))

        def plane(name: str, fill: torch.Tensor) -> torch.Tensor:
            return kv.take(name, fill.shape, fill.dtype).copy_(fill)

        def cache(layer: int) -> KvCache:
            heads = [torch.randint(-128, 128, (PAGES, 64, 2, 128), dtype=torch.int8) for _ in "kv"]
            scales = [torch.rand(PAGES, 64, 2, 2) for _ in "kv"]
            filled = enumerate([*heads, *scales])
            return KvCache("int8", *(plane(f"{layer}.{which}", fill) for which, fill in filled))

        caches = tuple(cache(layer) for layer in range(4))
        self.device = device
        self.state = ModelState(caches, GdnState(history, recurrent))
        self.compute = device.lane(LaneRole.COMPUTE)
        size = 300 * (1 << 20)
        self.arena = HostArena("host_bytes", size)
        host = device.pinned("host_tier", size).take("images", (size,), torch.uint8)
        ops = SimpleNamespace(**BACKEND.ops)
        self.transfers = Transfers(ops, self.state, device, host, MOST)

    def extents(self, pages: int):
        sizes = [self.transfers.slot_bytes] + [self.transfers.page_bytes] * pages
        return [self.arena.allocate(size) for size in sizes]

    def image(self, slot: int, pages: list[int]) -> list[torch.Tensor]:
        self.compute.synchronize()
        taken = [plane[slot].cpu() for plane in slot_planes(self.state)]
        return taken + [plane[pages].cpu() for plane in page_planes(self.state)]


@pytest.fixture
def world(device, compute):
    return World(device)


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("pitch", [strided.MOST_PITCH, 1 << 20])
def test_what_was_saved_comes_back_elsewhere(world, monkeypatch, pitch) -> None:
    """Also by copies of layers, which planes far from each other need."""
    assert [len(units.runs) for units in (world.transfers._pages, world.transfers._slots)] == [4, 2]
    monkeypatch.setattr(strided, "MOST_PITCH", pitch)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(PAGES, generator=generator).tolist()
    source, target = order[:MOST], order[MOST : 2 * MOST]
    expected = world.image(3, source)
    extents = world.extents(MOST)
    world.transfers.save(3, source, extents).wait()
    loaded = world.transfers.load(7, target, extents)
    loaded.hold_back(world.compute)
    assert same(world.image(7, target), expected)


def test_an_image_is_the_rows_of_the_planes_one_behind_the_other(world) -> None:
    """Over several parts, whose first is short, and byte by byte on the host."""
    generator = torch.Generator().manual_seed(1)
    pages = torch.randperm(PAGES, generator=generator)[:150].tolist()
    extents = world.extents(len(pages))
    saved = world.transfers.save(5, pages, extents)
    assert len(saved._parts) == 2, "32 pages are enqueued, 64 and 54 are not: four copies a page"
    saved.wait()
    units = [(5, slot_planes(world.state)), *((page, page_planes(world.state)) for page in pages)]
    for (unit, planes), extent in zip(units, extents, strict=True):
        rows = [plane[unit].cpu().contiguous().reshape(-1).view(torch.uint8) for plane in planes]
        expected = torch.cat(rows)
        image = world.transfers._host[extent.offset : extent.offset + len(expected)]
        assert torch.equal(image, expected)


def test_a_save_comes_after_the_work_before_it_and_a_load_before_the_work_after(world) -> None:
    """The compute lane writes late; nobody waits on the host."""
    keys = page_planes(world.state)[0]
    extents = world.extents(2)
    torch.cuda._sleep(SLEEP)
    keys[5].fill_(17)
    saved = world.transfers.save(0, [5, 6], extents)
    assert not saved.done()
    saved.hold_back(world.compute)
    torch.cuda._sleep(SLEEP)
    keys[5].fill_(99)
    loaded = world.transfers.load(1, [8, 9], extents)
    loaded.hold_back(world.compute)
    seen = keys[8].clone()
    assert bool((seen == 17).all())
    assert bool((keys[5] == 99).all())


def test_both_ways_run_beside_each_other_and_create_nothing(world) -> None:
    first, second = world.extents(64), world.extents(64)
    expected = world.image(2, list(range(64)))
    world.transfers.save(2, range(64), first).wait()
    before = world.device.counters()
    for _ in range(20):
        loaded = world.transfers.load(4, range(100, 164), first)
        saved = world.transfers.save(2, range(64), second)
    loaded.hold_back(world.compute)
    assert same(world.image(4, list(range(100, 164))), expected)
    saved.wait()
    assert world.device.counters() == before


def answers(**options):
    settings = EngineOptions(
        devices=("cuda:0",),
        queue_timeout=None,
        max_concurrency=4,
        max_context=512,
        prefill_chunk=64,
        cache_policy="off",
        **options,
    )
    sampling = SamplingParams(temperature=0.9, top_k=40, seed=11, repetition_penalty=1.2)
    asked = GenerationOptions(sampling=sampling, max_new_tokens=200, ignore_eos=True)
    with Engine.open("demo", settings) as engine:
        prompts = [PromptInput(token_ids=list(range(3, 40 + 9 * index))) for index in range(8)]
        handles = [engine.submit(prompt, asked) for prompt in prompts]
        results = [handle.result(WAIT) for handle in handles]
        assert engine.drain(WAIT)
        restores = sum(result.timings.restores for result in results)
        return [result.token_ids for result in results], restores


def test_an_engine_short_of_pages_restores_and_answers_alike() -> None:
    expected, _ = answers()
    given, restores = answers(kv_tokens=10 * 64, host_bytes=256 << 20)
    assert restores > 0
    assert given == expected
