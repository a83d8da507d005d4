"""Waiting for arrivals: rings, silences, and one timer for many waits."""

from __future__ import annotations

import asyncio

import pytest

from ninfer_gateway_http.bell import Bell


def test_a_ring_ends_the_wait_and_means_nothing_without_one():
    async def run():
        bell = Bell()
        bell.ring()
        with pytest.raises(TimeoutError):
            await bell.wait(0.001)
        for timeout in (None, 20):
            waiting = asyncio.ensure_future(bell.wait(timeout))
            await asyncio.sleep(0)
            bell.ring()
            bell.ring()
            await waiting
        bell.close()

    asyncio.run(run())


def test_an_old_timer_ends_no_later_wait_before_its_time():
    async def run():
        bell = Bell()
        for timeout in (None, 20):
            first = asyncio.ensure_future(bell.wait(0.005))
            await asyncio.sleep(0)
            bell.ring()
            await first
            second = asyncio.ensure_future(bell.wait(timeout))
            await asyncio.sleep(0.05)
            assert not second.done()
            bell.ring()
            await second
        bell.close()

    asyncio.run(run())


def test_a_shorter_wait_is_not_kept_for_a_longer_ones_timer():
    async def run():
        bell = Bell()
        first = asyncio.ensure_future(bell.wait(3600))
        await asyncio.sleep(0)
        bell.ring()
        await first
        with pytest.raises(TimeoutError):
            await bell.wait(0.001)
        bell.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_waits_share_a_timer_and_closing_leaves_none():
    async def run():
        loop = asyncio.get_running_loop()
        timers = []
        original = loop.call_at

        def call_at(when, callback, *args, **named):
            timers.append(original(when, callback, *args, **named))
            return timers[-1]

        loop.call_at = call_at
        bell = Bell()
        for _ in range(100):
            waiting = asyncio.ensure_future(bell.wait(3600))
            await asyncio.sleep(0)
            bell.ring()
            await waiting
        bell.close()
        bell.close()
        return timers

    (timer,) = asyncio.run(run())
    assert timer.cancelled()


def test_a_cancelled_wait_leaves_the_bell_usable():
    async def run():
        bell = Bell()
        waiting = asyncio.ensure_future(bell.wait(20))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        bell.ring()
        again = asyncio.ensure_future(bell.wait(20))
        await asyncio.sleep(0)
        assert not again.done()
        bell.ring()
        await again
        bell.close()

    asyncio.run(run())
