"""A share of `bench/accept/http_schemathesis.py`: made-up requests never end in a fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "accept" / "http_schemathesis.py"


def test_made_up_requests_are_answered_without_a_fault(tmp_path):
    """In a process of its own: what is made up depends on every module that is imported, and must
    be the same alone and among all tests. Under this seed an early request asks for more
    ``min_tokens`` than int32 holds."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--examples", "200", "--seed", "8"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert found["asked"] >= 200
    answered = [label for label, count in found["statuses"].items() if "200" in count]
    assert {"POST /v1/chat/completions", "POST /v1/completions", "POST /v1/messages"} <= set(
        answered
    )
