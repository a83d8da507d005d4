"""A share of ``bench/accept/cache_traffic.py``: what the policy serves of agent traffic."""

from __future__ import annotations

import pytest

from ninfer_core.engine.policies_reuse import ReusePolicy
from ninfer_core.testing.engine_replay import UNLIMITED, EndsOnly, limited, replay
from ninfer_core.testing.engine_traffic import TrafficMix, TrafficRequest, agent_traffic
from ninfer_core.testing.fake_instance import KeepPolicy

ROOM = limited(24, 40000)


@pytest.fixture(scope="module")
def requests() -> list[TrafficRequest]:
    return list(agent_traffic(TrafficMix(requests=300)))


def test_the_policy_serves_nearly_what_an_unlimited_cache_serves(requests):
    policy = replay(requests, ReusePolicy(), ROOM)
    unlimited = replay(requests, KeepPolicy(), UNLIMITED)
    whole = replay(requests, EndsOnly(), ROOM)
    assert policy.share >= 0.85 * unlimited.share
    assert policy.share >= whole.share + 0.20
    assert policy.stats.checkpoints <= 24
    assert policy.stats.cached_tokens == policy.cached_tokens
    assert policy.stats.reuse == policy.reasons


def test_an_unlimited_cache_serves_what_the_requests_have_in_common(requests):
    """Only what no earlier request holds up to a restore point is read: by comparing prompts."""
    unlimited = replay(requests[:60], KeepPolicy(), UNLIMITED)
    kept: list[tuple[int, ...]] = []
    possible = 0
    for request in requests[:60]:
        hits = [len(k) for k in kept if request.tokens[: len(k)] == k]
        possible += max(hits, default=0)
        kept += [request.tokens[:at] for at, _ in request.points]
    assert 0 < unlimited.cached_tokens <= unlimited.prompt_tokens
    assert unlimited.cached_tokens >= possible, "ends come on top of the restore points"


def test_the_same_traffic_leads_to_the_same_decisions(requests):
    first, again = (replay(requests[:120], ReusePolicy(), ROOM) for _ in range(2))
    assert first.stats == again.stats
    assert (first.cached_tokens, first.points) == (again.cached_tokens, again.points)
