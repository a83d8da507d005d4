"""Host time of a decode round, without a GPU: rounds that cost the device nothing.

Usage: python bench/host_round.py [--batch 1,8] [--rounds 2000] [--device-us 0]
                                  [--readers none|one|each] [--profile]

Serves greedy requests of the demo model on the CPU, by the units of a device with a queue. Once all
of them decode, their captured rounds are replaced by a launch that writes made-up tokens where the
device would, so that what is left is the host's own work, booked as the engine books it: medians
and, in brackets, lower quartiles of the parts that ``ninfer bench`` reports as ``host_us``.
``--device-us`` is how long a round takes; the host waits for it as for a GPU, and is slower
afterwards. ``--readers`` says who reads the streams meanwhile: nobody, one thread,
or one thread each. ``--profile`` prints calls and times by function instead.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import statistics
import threading
import time
from array import array
from contextlib import ExitStack, suppress
from typing import Any

PARTS = ("engine", "submit", "post", "output", "host")
CONTEXT = 16384
DRAIN_EVERY = 50
SOURCES = 61


class LateWord:
    """A flag's word, seen when its round is due."""

    def __init__(self, word: Any) -> None:
        self._word = word
        self.due = 0.0

    @property
    def value(self) -> int:
        return int(self._word.value) if time.perf_counter() >= self.due else 0


class NullRounds:
    """Stands for every captured round: a launch is done ``seconds`` after it, and after the one
    before it."""

    def __init__(self, launcher: Any, tokens: list[int], lanes: int, seconds: float) -> None:
        self._host = launcher._ring
        ring = self._host.ring
        self._ingress = [memoryview(place.numpy()) for place in ring.ingress]
        self._egress = [memoryview(place.numpy()) for place in ring.egress]
        self._words = [LateWord(flag._word) for flag in launcher._flags]
        self._seconds = seconds
        self._done_at = 0.0
        sound = [word for token in tokens for word in (token, 0)]
        self._rows = [array("i", sound[at : at + 2 * lanes]) for at in range(0, len(sound), 2)]
        for flag, word in zip(launcher._flags, self._words, strict=True):
            flag._word = word
        for captured in launcher._rounds._captured.values():
            captured.graph = self

    def replay(self) -> None:
        number = self._host.number - 1
        place = number % len(self._egress)
        words, count = self._egress[place], self._ingress[place][1]
        words[4 : 4 + 2 * count] = self._rows[number % SOURCES][: 2 * count]
        words[0], words[2] = number + 1, count
        self._done_at = max(self._done_at, time.perf_counter()) + self._seconds
        self._words[place].due = self._done_at


def serve(batch: int, new: int, seconds: float, lanes: int = 8) -> tuple[Any, list[Any]]:
    """A core in which ``batch`` requests decode, and their handles."""
    from ninfer_core.artifact import open_artifact
    from ninfer_core.contract.instance import Budget, FrontendRequest
    from ninfer_core.contract.requests import GenerationOptions, PromptInput
    from ninfer_core.contract.sampling import SamplingParams
    from ninfer_core.device.cpu import open_device
    from ninfer_core.engine.core import EngineCore
    from ninfer_core.engine.ingress import Ingress
    from ninfer_core.engine.lifecycle import Lifecycle
    from ninfer_core.engine.outstanding import OutstandingGate
    from ninfer_core.engine.policies import OffPolicy
    from ninfer_core.ops.reference import OPS
    from ninfer_demo_model.source import resolve
    from ninfer_qwen3_5.config import TextConfig
    from ninfer_qwen3_5.frontend import open_frontend
    from ninfer_qwen3_5.load.text import load_text
    from ninfer_qwen3_5.model.text import TextModel
    from ninfer_qwen3_5.program.assemble import generation_program

    with open_artifact(resolve()) as artifact:
        config = TextConfig.from_json(artifact.component("text").config)
        parameters = load_text(artifact, config, OPS)
        frontend = open_frontend(FrontendRequest(artifact=artifact, max_context=CONTEXT))
    model = TextModel(config, parameters, OPS, frontend.vocab_size)
    budget = Budget(max_context=CONTEXT, max_concurrency=lanes, prefill_chunk=64)
    program, _ = generation_program(model, budget, open_device(), held=ExitStack())
    core = EngineCore(program, OffPolicy(), Lifecycle(), OutstandingGate(4 * lanes))
    ingress = Ingress(frontend, CONTEXT, None, core.lifecycle, core.gate, time.monotonic)
    core.lifecycle.ready()
    drawn = random.Random(1)
    low, high = frontend.vocab_size // 8, frontend.vocab_size - frontend.vocab_size // 8
    tokens = [drawn.randrange(low, high) for _ in range(SOURCES + lanes)]
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=new, ignore_eos=True
    )
    handles: list[Any] = [
        ingress.submit(PromptInput(token_ids=tokens[row : row + 20]), options)
        for row in range(batch)
    ]
    while any(len(handle._record.tokens) < 2 for handle in handles):
        core.step()
    NullRounds(program._units._rounds, tokens, lanes, seconds)
    core.rounds.reset()
    return core, handles


def run(core: Any, handles: list[Any], rounds: int, readers: str) -> None:
    """Step through ``rounds`` rounds on a thread of its own while the readers read."""
    if readers == "none":
        for number in range(rounds):
            core.step()
            if number % DRAIN_EVERY == 0:
                drain(handles)
        return
    groups = [[handle] for handle in handles] if readers == "each" else [handles[::-1]]
    threads = [threading.Thread(target=read, args=(group,), daemon=True) for group in groups]
    threads.append(threading.Thread(target=lambda: [core.step() for _ in range(rounds)]))
    for thread in threads:
        thread.start()
    threads[-1].join()


def read(handles: list[Any]) -> None:
    """Read all streams in turn, for ever: the last one first, as its events come last."""
    while all(handle.next_event() is not None for handle in handles):
        pass


def drain(handles: list[Any]) -> None:
    for handle in handles:
        with suppress(TimeoutError):
            while True:
                handle.next_event(0)


def table(core: Any, label: str) -> None:
    rounds = [timing for timing in core.round_timings() if timing.alone]
    cells = []
    for part in PARTS:
        low, middle, _ = statistics.quantiles([getattr(one, part) for one in rounds], n=4)
        cells.append(f"{part} {middle:6.1f} ({low:6.1f})")
    print(f"{label}  {'  '.join(cells)}  us, {len(rounds)} rounds", flush=True)


def profile(core: Any, handles: list[Any], rounds: int) -> None:
    profiler = cProfile.Profile()
    for _ in range(rounds // DRAIN_EVERY):
        profiler.enable()
        for _ in range(DRAIN_EVERY):
            core.step()
        profiler.disable()
        drain(handles)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--device-us", type=float, default=0.0)
    parser.add_argument("--readers", choices=("none", "one", "each"), default="none")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    for batch in map(int, given.batch.split(",")):
        core, handles = serve(batch, given.rounds + 100, given.device_us * 1e-6)
        if given.profile:
            profile(core, handles, given.rounds)
        else:
            run(core, handles, given.rounds, given.readers)
            table(core, f"B={batch}")


if __name__ == "__main__":
    main()
