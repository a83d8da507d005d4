"""What the cache policy serves of agent traffic, over the fake Program on a virtual clock.

Usage: python bench/accept/cache_traffic.py [--requests 2000] [--seed 20] [--slots 24]
       [--tokens 40000]

Shares of all prompt tokens that came from the cache: with the policy in a limited cache, with a
cache that never gives anything up, and with whole prompts alone (ends of outputs, the oldest given
up first) in the limited one. Prints one JSON object; ``ok`` wants at least 85 % of the unlimited
share and 20 points more than whole prompts alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from _setting import conditions

from ninfer_core.engine.policies_reuse import ReusePolicy
from ninfer_core.testing.engine_replay import UNLIMITED, EndsOnly, Replayed, limited, replay
from ninfer_core.testing.engine_traffic import TrafficMix, agent_traffic
from ninfer_core.testing.fake_instance import KeepPolicy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--slots", type=int, default=24, help="states, four active ones included")
    parser.add_argument("--tokens", type=int, default=40000, help="tokens of context in all")
    asked = parser.parse_args()
    started = time.perf_counter()
    requests = list(agent_traffic(TrafficMix(requests=asked.requests, seed=asked.seed)))
    room = limited(asked.slots, asked.tokens)
    policy = replay(requests, ReusePolicy(), room)
    unlimited = replay(requests, KeepPolicy(), UNLIMITED)
    whole = replay(requests, EndsOnly(), room)
    report = {
        "requests": asked.requests,
        "prompt_tokens": policy.prompt_tokens,
        "policy": _described(policy),
        "unlimited": _described(unlimited),
        "whole_prompts": _described(whole),
        "of_unlimited": round(policy.share / unlimited.share, 4),
        "points_over_whole_prompts": round(100 * (policy.share - whole.share), 2),
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time(), 1),
        "conditions": conditions(),
    }
    report["ok"] = report["of_unlimited"] >= 0.85 and report["points_over_whole_prompts"] >= 20
    print(json.dumps(report, indent=2))
    return 0 if report["ok"] else 1


def _described(outcome: Replayed) -> dict[str, Any]:
    stats = outcome.stats
    return {
        "share": round(outcome.share, 4),
        "reasons": dict(sorted(outcome.reasons.items())),
        "points": dict(sorted(outcome.points.items())),
        "captures": stats.captures,
        "kept_ends": stats.kept_ends,
        "reclaimed": stats.reclaimed,
        "checkpoints": stats.checkpoints,
    }


if __name__ == "__main__":
    sys.exit(main())
