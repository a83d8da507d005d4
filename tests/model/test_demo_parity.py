"""The trained demo model: our logits against transformers', prompt by prompt and batched."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from transformers import Qwen3_5ForCausalLM

from ninfer_core.artifact import open_artifact
from ninfer_core.contract.instance import Budget, FrontendRequest
from ninfer_core.contract.requests import ChatOptions, PromptInput
from ninfer_core.device.cpu import open_device
from ninfer_core.ops.reference import OPS
from ninfer_core.testing.program_driver import ProgramDriver
from ninfer_demo_model.source import resolve
from ninfer_demo_model.tasks import FAMILIES, draw
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.frontend import open_frontend
from ninfer_qwen3_5.load.text import load_text
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.assemble import generation_program

CHECKPOINT = Path(__file__).parents[2] / "plugins" / "demo_model" / "checkpoint"
TOLERANCE = 2e-4


@dataclasses.dataclass
class Demo:
    oracle: Qwen3_5ForCausalLM
    model: TextModel
    blocks: list[torch.Tensor]
    prompts: list[list[int]]

    def driver(self, chunk: int) -> ProgramDriver:
        budget = Budget(max_context=4096, max_concurrency=8, prefill_chunk=chunk)
        return ProgramDriver(generation_program(self.model, budget, open_device(0))[0])

    def error(self, logits: torch.Tensor, token_ids: list[int]) -> float:
        with torch.inference_mode():
            expected = self.oracle(torch.tensor([token_ids]), logits_to_keep=1).logits[0, -1]
        addressable = self.model.addressable
        return float((logits[:addressable] - expected[:addressable]).abs().max())


@pytest.fixture(scope="module")
def demo() -> Demo:
    blocks: list[torch.Tensor] = []

    def recorded(*args):
        logits = OPS.norm_head(*args)
        blocks.append(logits.clone())
        return logits

    ops = dataclasses.replace(OPS, norm_head=recorded)
    with open_artifact(resolve()) as artifact:
        config = TextConfig.from_json(artifact.component("text").config)
        parameters = load_text(artifact, config, ops)
        frontend = open_frontend(FrontendRequest(artifact=artifact, max_context=4096))
    model = TextModel(config, parameters, ops, frontend.vocab_size)
    oracle = Qwen3_5ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    rng = random.Random(3)
    cases = [draw(family, rng, "heldout") for family in FAMILIES]
    rendered = [
        PromptInput(messages=c.messages, tools=c.tools, chat=ChatOptions(thinking=c.thinking))
        for c in cases
    ]
    prompts = [frontend.prepare(prompt).token_ids.tolist() for prompt in rendered]
    return Demo(oracle, model, blocks, prompts)


@pytest.mark.parametrize("chunk", [1024, 64, 24])
def test_prompt_logits_for_every_family(demo, chunk) -> None:
    driver = demo.driver(chunk)
    for prompt in demo.prompts:
        row = driver.bind(prompt)
        driver.prefill(row)
        assert demo.error(demo.blocks[-1][0], prompt) <= TOLERANCE
        driver.finish(row)


def test_batched_decode_logits(demo) -> None:
    driver = demo.driver(256)
    rows = [driver.bind(prompt, lane=lane) for lane, prompt in enumerate(demo.prompts[:8])]
    for row in rows:
        driver.prefill(row)
    for batch in range(8, 0, -1):
        before = [[*row.request.prepared.token_ids.tolist(), *row.tokens] for row in rows[:batch]]
        driver.decode(rows[:batch])
        for ids, logits in zip(before, demo.blocks[-1], strict=True):
            assert demo.error(logits, ids) <= TOLERANCE
