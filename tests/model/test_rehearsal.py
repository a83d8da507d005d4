"""A rehearsal of units calls for every kernel that the engine's warm-up and serving launch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from ninfer_core.artifact import open_artifact
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.cpu import open_device
from ninfer_core.engine import Engine
from ninfer_core.engine.opened import OpenedInstance
from ninfer_core.ops.backend import OpBackend
from ninfer_core.ops.reference import BACKEND as REFERENCE
from ninfer_core.ops.select import select_ops
from ninfer_core.testing.fake_frontend import FakeFrontend
from ninfer_demo_model.source import resolve
from ninfer_qwen3_5.build import Qwen35Instance
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.load.source import ArtifactSource
from ninfer_qwen3_5.load.text import TextLoader, load_text
from ninfer_qwen3_5.model.lending import LentParts
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.drafting import Drafting
from ninfer_qwen3_5.program.layout import Numerics, own_cache
from ninfer_qwen3_5.program.queued.rehearsal import chunk_sizes
from ninfer_spec_dflash.config import DFlashConfig
from ninfer_spec_dflash.drafter import DFlashDrafter
from ninfer_spec_mtp.drafter import MtpDrafter
from tests.model.block_drafters import RandomSource, published

pytest.importorskip("triton")

from ninfer_ops_triton import launch
from ninfer_ops_triton.backend import BACKEND
from ninfer_ops_triton.prepare import Operand, foresee

SIZES = {"max_context": 256, "max_concurrency": 3, "prefill_chunk": 32}
BLOCK = {
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_target_layers": 8,
    "vocab_size": 2560,
}
WAIT = 60.0
DRAWN = SamplingParams(temperature=0.9, top_k=40, seed=11, repetition_penalty=1.2)


class Zeros(TorchFunctionMode):
    """Memory that no kernel writes reads as zeros: every token is 0, and no row is broken."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.empty, torch.empty_like, torch.Tensor.new_empty):
            self.fill(result)
        return result

    def fill(self, unwritten: torch.Tensor) -> None:
        unwritten.zero_()


class Garbage(Zeros):
    """It reads as what no index may be, as on a GPU, where memory was somebody's before."""

    def fill(self, unwritten: torch.Tensor) -> None:
        if unwritten.is_floating_point():
            unwritten.fill_(torch.nan)
        elif unwritten.dtype != torch.bool:
            unwritten.fill_(torch.iinfo(unwritten.dtype).max)


class Stage:
    """Builds an engine whose worker thread launches nothing, and notes what it would launch."""

    def __init__(self, drafts: int = 0, backend: str = "mtp", *, draws: bool = False) -> None:
        self._drafts = drafts
        self._draws = draws
        self._backend = backend
        self.foreseen: set[tuple[Any, ...]] = set()
        self.launched: dict[tuple[Any, ...], str] = {}
        self._held = ExitStack()
        self._rehearsing = False

    def open(self) -> OpenedInstance:
        """On the engine's thread, which closes the Program and with it what is entered here."""
        self._held.enter_context(Zeros())
        self._held.enter_context(launch.dry_run())
        try:
            return self._opened()
        except BaseException:
            self._held.close()
            raise

    def _opened(self) -> OpenedInstance:
        text, budget, device = self._model(), Budget(**SIZES), open_device()
        program, memory = generation_program(
            text,
            budget,
            device,
            Numerics("bfloat16", "bf16"),
            self._held,
            self._prepare,
            self._drafting(text),
        )
        frontend = FakeFrontend(budget.max_context, text.config.vocab_size)
        return OpenedInstance(
            instance=Qwen35Instance("demo", frontend, program, memory),
            architecture="Qwen3_5ForCausalLM",
            source="demo",
            devices=(device.name,),
            max_context=budget.max_context,
            warm_up=True,
        )

    def _drafting(self, text: TextModel) -> Drafting | None:
        """With the demo model's own MTP head, or a DFlash model of random weights."""
        if not self._drafts:
            return None
        if self._backend != "mtp":
            block = DFlashDrafter(DFlashConfig.from_json(published(self._backend, **BLOCK)))
            loader = TextLoader(RandomSource("bf16"), text.config, text.ops)
            block.bind(LentParts(text, loader, block.component))
            return Drafting(block, self._drafts, draws=self._draws)
        drafter = MtpDrafter(own_cache(text.config))
        with open_artifact(resolve()) as artifact:
            loader = TextLoader(ArtifactSource(artifact, "mtp"), text.config, text.ops)
            drafter.bind(LentParts(text, loader, "mtp"))
        return Drafting(drafter, self._drafts, draws=self._draws)

    def _model(self) -> TextModel:
        """The demo model over the kernels, but for what the host waits for: the rounds' own ops."""
        rounds = {
            name: OpBackend("rounds", {name: self._unless_rehearsing(REFERENCE.ops[name])})
            for name in ("begin_round", "publish_round")
        }
        selection = select_ops(BACKEND, "test", overrides=rounds)
        assert selection.prepare is None
        with open_artifact(resolve()) as artifact:
            config = TextConfig.from_json(artifact.component("text").config)
            parameters = load_text(artifact, config, selection.ops)
        return TextModel(config, parameters, selection.ops, config.vocab_size)

    def _unless_rehearsing(self, op: Callable[..., None]) -> Callable[..., None]:
        def called(*args: Any) -> None:
            if not self._rehearsing:
                op(*args)

        return called

    def _prepare(self, rehearsal: Callable[[], None]) -> None:
        self._rehearsing = True
        with Garbage():
            self.foreseen = {seen(e.kernel, e.args, e.options) for e in foresee(rehearsal)}
        self._rehearsing = False
        launch.observers.append(self._note)

    def _note(self, kernel: Any, grid: Any, args: tuple[Any, ...], options: Any) -> None:
        self.launched.setdefault(seen(kernel, args, options), kernel.__name__)

    def close(self) -> None:
        launch.observers.remove(self._note)


def seen(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """What the compiler tells apart."""
    return kernel, *sorted(options.items()), *map(fact, args)


def fact(argument: Any) -> Any:
    if isinstance(argument, Operand | torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument == 1, argument % 16 == 0, argument.bit_length() < 32
    return type(argument)


@pytest.mark.parametrize(
    ("drafts", "backend", "draws"),
    [
        (0, "", False),
        (3, "mtp", False),
        (5, "mtp", True),
        (7, "dflash", False),
        (5, "dflash", True),
        (7, "dflash2", False),
        (7, "dflash2", True),
    ],
)
def test_whatever_is_launched_was_foreseen(drafts, backend, draws) -> None:
    stage = Stage(drafts, backend, draws=draws)
    options = EngineOptions(
        max_concurrency=SIZES["max_concurrency"], prefill_chunk=SIZES["prefill_chunk"]
    )
    with Engine(stage.open, options) as engine:
        asked = [
            engine.submit(PromptInput(token_ids=[1] * length), GenerationOptions(
                sampling=sampling, max_new_tokens=4, ignore_eos=True, prompt_logprobs=top
            ))
            for length in (5, 16, 31, 70)
            for sampling in (SamplingParams(temperature=0.0), DRAWN)
            for top in (None, 3)
        ]  # fmt: skip
        for handle in asked:
            assert handle.result(WAIT).token_ids == (0, 0, 0, 0)
        stage.close()
    missing = [name for key, name in stage.launched.items() if key not in stage.foreseen]
    assert len(stage.launched) > 40
    assert missing == []


@pytest.mark.parametrize(
    ("chunk", "sizes"), [(1, [1]), (6, [1, 2, 3, 4, 5, 6]), (8, [1, 2, 3, 4, 5, 8])]
)
def test_sizes_of_chunks(chunk, sizes) -> None:
    assert chunk_sizes(chunk) == sizes
