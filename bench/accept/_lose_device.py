"""Lose the device of a serving engine and print, as JSON, how it ended: ``_lose_device.py DEVICE``.

On a GPU a kernel traps on the engine's own lane; elsewhere the loss is raised by the next round.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.errors import DeviceLost
from ninfer_core.errors import NinferError

TRAP = 'extern "C" __global__ void trap() { asm("trap;"); }'


def lose(engine: Any, device: str) -> None:
    if device == "cpu":

        def lost(*_: object, **__: object) -> None:
            raise DeviceLost("cpu was lost while being tried")

        engine._core.program.launch_decode = lost
        return

    def trap() -> None:
        import cupy

        cupy.RawKernel(TRAP, "trap")((1,), (1,), ())

    engine._lifecycle.ask(trap)


def ending(handle: Any) -> str:
    try:
        handle.result(60)
    except NinferError as error:
        return f"{type(error).__name__}: {error}"
    except TimeoutError:
        return "none"
    return "a result"


def refusal(engine: Any, prompt: PromptInput) -> str:
    try:
        engine.submit(prompt)
    except NinferError as error:
        return type(error).__name__
    return "none"


def main() -> None:
    device = sys.argv[1]
    options = EngineOptions(devices=(device,), max_concurrency=4, max_pending=16)
    prompt = PromptInput(token_ids=list(range(40, 80)))
    endless = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=4000, ignore_eos=True
    )
    engine = Engine.open("demo", options)
    handles = [engine.submit(prompt, endless) for _ in range(8)]
    for _ in range(3):
        handles[0].next_event(60)
    started = time.monotonic()
    lose(engine, device)
    ends = [ending(handle) for handle in handles]
    seconds = time.monotonic() - started
    state, refused = engine.availability(), refusal(engine, prompt)
    engine.close()
    print(
        json.dumps(
            {
                "ends": sorted(set(ends)),
                "state": state.state.value,
                "reason": state.reason,
                "refused_with": refused,
                "seconds_to_end": round(seconds, 2),
                "passed": all("was lost" in end for end in ends)
                and state.state.value == "failed"
                and refused == "Unavailable",
            }
        )
    )


if __name__ == "__main__":
    main()
