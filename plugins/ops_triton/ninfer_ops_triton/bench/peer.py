"""The same geometry in transformers' ``generate``, in a process of its own.

Run as ``python -m ninfer_ops_triton.bench.peer``: takes one JSON object on stdin, answers one on
the last line of stdout. Weights are random, for their values do not change the time.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

NAMES: Final = ("transformers",)
_LIMIT: Final = 1800.0
_FAST_PATH: Final = ("fla", "causal_conv1d")

Json = dict[str, Any]


def measure_peer(name: str, task: Mapping[str, Any]) -> Json:
    """Figures of a peer, or the reason why there are none under ``skipped``.

    ``task``: ``config`` (the text configuration), ``device``, ``batches``, ``prompt``, ``new``.
    """
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, input=json.dumps(task), capture_output=True, text=True, timeout=_LIMIT,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"name": name, "skipped": f"it took more than {_LIMIT:.0f} s"}
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return {"name": name, "skipped": said[-1] if said else f"exit code {done.returncode}"}
    return {"name": name, "skipped": None, **json.loads(done.stdout.strip().splitlines()[-1])}


def main() -> None:
    """Build the model, measure every batch, print the figures."""
    import torch
    import transformers

    task = json.load(sys.stdin)
    device = torch.device(task["device"])
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model = build(task["config"], device, dtype)
    runs = [_measure(model, batch, task, device) for batch in task["batches"]]
    facts = {"version": transformers.__version__, "dtype": str(dtype), "path": path_of()}
    print(json.dumps({**facts, "runs": runs}))  # noqa: T201


def build(config: Mapping[str, Any], device: Any, dtype: Any) -> Any:
    """A ``Qwen3_5ForCausalLM`` with random weights."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    text = Qwen3_5TextConfig(**{k: v for k, v in config.items() if k != "architectures"})
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device, torch.no_grad():
            return Qwen3_5ForCausalLM(text).eval()  # type: ignore[no-untyped-call]
    finally:
        torch.set_default_dtype(before)


def path_of() -> str:
    """Which of the packages of transformers' fast path can be imported here; without one, its own
    torch code does that part."""
    parts = ((package, _version(package)) for package in _FAST_PATH)
    return ", ".join(f"{package} {found or 'missing'}" for package, found in parts)


def _version(package: str) -> str | None:
    try:
        return str(getattr(importlib.import_module(package), "__version__", "present"))
    except Exception:
        return None


def _measure(model: Any, batch: int, task: Mapping[str, Any], device: Any) -> Json:
    """Time to one token, and the rate of those after it; the better of two after a first."""
    import torch

    ids = torch.randint(1, model.config.vocab_size - 1, (batch, task["prompt"]), device=device)

    def made(new: int) -> float:
        return min(_timed(lambda: _generate(model, ids, new), device) for _ in range(2))

    _generate(model, ids, 2)
    first, whole = made(1), made(task["new"])
    later = task["new"] - 1
    rate = batch * later / (whole - first) if later and whole > first else 0.0
    return {
        "batch": batch,
        "ttft_ms": round(1e3 * first, 3),
        "decode_tokens_per_second": round(rate, 1),
    }


def _generate(model: Any, ids: Any, new: int) -> None:
    import torch

    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=new,
            max_new_tokens=new,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )


def _timed(work: Callable[[], None], device: Any) -> float:
    import torch

    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
