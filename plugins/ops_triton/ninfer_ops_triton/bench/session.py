"""One run of the bench: a model, several batches, and what they are compared with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninfer_core.artifact import open_artifact
from ninfer_core.console import Interrupt
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.instance import DEFAULT_CONTEXT, instance_factory
from ninfer_core.plugins import PluginHost
from ninfer_ops_triton.bench.conditions import conditions, cuda_index
from ninfer_ops_triton.bench.drive import drive, prompts
from ninfer_ops_triton.bench.figures import figures, roofline_share
from ninfer_ops_triton.bench.peer import measure_peer
from ninfer_ops_triton.bench.traffic import Traffic, traffic_of

if TYPE_CHECKING:
    from ninfer_core import Engine

Json = dict[str, Any]
_WARM_CHUNKS = 4
"""Chunks of a prompt after which every kernel of prefill has run."""
_MARGIN = 16
"""Rounds beyond those asked for: the ones around the edges are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is measured: each of ``batches`` with prompts of each of ``lengths``. ``new`` None means
    as many tokens as ``rounds`` full rounds need, if no draft is right. ``draft`` and
    ``draft_tokens`` as ``EngineOptions`` has them."""

    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    new: int | None
    rounds: int
    device: str
    kv_format: str | None
    prefill_chunk: int
    activations: str
    draft: str | None
    draft_tokens: int
    peers: tuple[str, ...]

    def new_tokens(self, batch: int, length: int) -> int:
        """Requests begin one after another, and those that began first also end first."""
        if self.new is not None:
            return self.new
        chunks = -(-length // self.prefill_chunk)
        return self.rounds + _MARGIN + (batch - 1) * (chunks + 1)

    def engine_options(self, host: PluginHost) -> EngineOptions:
        """The context that any engine gets by itself, or as much as is needed."""
        most, longest = max(self.batches), max(self.lengths)
        needed = longest + self.new_tokens(most, longest) + 1
        return EngineOptions(
            devices=(self.device,),
            plugins=host.selection.requested,
            disabled_plugins=host.selection.blocked,
            max_context=needed if needed > DEFAULT_CONTEXT else None,
            max_concurrency=most,
            prefill_chunk=self.prefill_chunk,
            kv_format=self.kv_format,
            activations=self.activations,
            draft=self.draft,
            draft_tokens=self.draft_tokens,
            queue_timeout=None,
        )


class Session:
    """Measures the model of an artifact."""

    def __init__(
        self, artifact: Path, setting: Setting, host: PluginHost, interrupt: Interrupt
    ) -> None:
        self._artifact = artifact
        self._setting = setting
        self._host = host
        self._interrupt = interrupt
        self._bandwidths: list[Json] = []
        self._notes: list[str] = []

    def measure(self) -> Json:
        """The whole report. Raises NinferError, and Interrupted after Ctrl-C."""
        self._read_bandwidth(self._cuda_device())
        with self._interrupt.wait_for(self._open) as engine:
            report = self._measured(engine)
        self._read_bandwidth(cuda_index(report["devices"][0]))
        used = max((found["bytes_per_second"] for found in self._bandwidths), default=None)
        if used is not None:
            report["read_bandwidth"] = {"used": used, "measured": self._bandwidths}
        for run in report["runs"]:
            run["roofline_share"] = roofline_share(run, used)
        report["peers"] = [self._peer(name, report) for name in self._setting.peers]
        return report

    def _open(self) -> Engine:
        from ninfer_core import Engine

        options = self._setting.engine_options(self._host)
        factory = instance_factory(self._artifact, options, self._host)
        return Engine.open(self._artifact, options, factory=factory)

    def _measured(self, engine: Engine) -> Json:
        summary = engine.load_summary()
        on_gpu = cuda_index(summary.devices[0]) is not None
        kv_format = self._setting.kv_format or ("bf16" if on_gpu else "fp32")
        traffic, draft = None, summary.details.get("draft")
        if on_gpu and draft is None:
            traffic = traffic_of(self._artifact, self._host, kv_format, summary.vocab_size)
        runs = [
            self._run(engine, batch, length, traffic)
            for length in self._setting.lengths
            for batch in self._setting.batches
        ]
        return {
            "bench": "decode",
            "model": summary.name,
            "devices": list(summary.devices),
            "setting": {
                "prompts": self._setting.lengths,
                "rounds": self._setting.rounds,
                "prefill_chunk": summary.prefill_chunk,
                "kv_format": kv_format,
                "activations": summary.details["activations"],
                **({} if draft is None else {"draft": draft}),
                "max_context": summary.max_context,
                "max_concurrency": summary.max_concurrency,
            },
            "load_seconds": round(summary.seconds, 3),
            "memory": asdict(engine.memory_summary()),
            "read_bandwidth": None,
            "runs": runs,
            "peers": [],
            "notes": self._notes,
            "conditions": conditions(summary.devices),
        }

    def _run(self, engine: Engine, batch: int, length: int, traffic: Traffic | None) -> Json:
        """One run that is not counted, then one that is."""
        setting, vocabulary = self._setting, engine.load_summary().vocab_size
        new = setting.new_tokens(batch, length)
        warm = min(length, _WARM_CHUNKS * setting.prefill_chunk)
        drive(engine, prompts(batch, warm, vocabulary, 2 * batch), 8, self._interrupt.check)
        ids = prompts(batch, length, vocabulary, 2 * batch + 1)
        run = drive(engine, ids, new, self._interrupt.check)
        measured = figures(run, traffic, drafting="draft" in engine.load_summary().details)
        measured["new_tokens"] = new
        if measured["rounds"] < setting.rounds:
            self._notes.append(
                f"batch {batch}: {measured['rounds']} consecutive rounds of all rows, "
                f"{setting.rounds} were asked for"
            )
        return measured

    def _cuda_device(self) -> int | None:
        """The CUDA device that will be used, as far as that is known before it is opened."""
        if self._setting.device != "auto":
            return cuda_index(self._setting.device)
        import torch

        return 0 if torch.cuda.is_available() else None

    def _read_bandwidth(self, device: int | None) -> None:
        if device is None:
            return
        from ninfer_ops_triton.bench.bandwidth import read_bandwidth

        try:
            self._bandwidths.append(read_bandwidth(device))
        except RuntimeError as error:
            self._notes.append(f"the read bandwidth of cuda:{device} was not measured: {error}")

    def _peer(self, name: str, report: Json) -> Json:
        with open_artifact(self._artifact) as artifact:
            config = artifact.component("text").config
        task = {
            "config": config.get("text_config") or config,
            "device": report["devices"][0],
            "batches": self._setting.batches,
            "prompt": self._setting.lengths[0],
            "new": self._setting.new or self._setting.rounds,
        }
        return measure_peer(name, task)
