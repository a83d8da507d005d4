"""A rehearsal also calls for every kernel that block drafters launch."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine import Engine
from ninfer_qwen3_5.load.text import TextLoader
from ninfer_qwen3_5.model.lending import LentParts
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import Drafting
from ninfer_spec_dflash.config import DFlashConfig
from ninfer_spec_dflash.drafter import DFlashDrafter
from tests.model.block_drafters import RandomSource, published
from tests.model.test_rehearsal import DRAWN, SIZES, WAIT, Stage


class BlockStage(Stage):
    """With a drafter of random weights beside the demo model."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def _drafting(self, text: TextModel) -> Drafting:
        target = text.config
        config = DFlashConfig.from_json(
            published(
                self._kind, hidden_size=target.hidden_size, intermediate_size=256,
                num_attention_heads=4, num_key_value_heads=2, head_dim=64, sliding_window=64,
                num_target_layers=len(target.layer_types), vocab_size=target.vocab_size,
            )
        )  # fmt: skip
        drafter = DFlashDrafter(config)
        loader = TextLoader(RandomSource("bf16"), target, text.ops)
        drafter.bind(LentParts(text, loader, drafter.component))
        return Drafting(drafter, drafter.max_drafts)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_whatever_a_block_drafter_launches_was_foreseen(kind) -> None:
    stage = BlockStage(kind)
    options = EngineOptions(
        max_concurrency=SIZES["max_concurrency"], prefill_chunk=SIZES["prefill_chunk"]
    )
    with Engine(stage.open, options) as engine:
        asked = [
            engine.submit(
                PromptInput(token_ids=[1] * length),
                GenerationOptions(sampling=sampling, max_new_tokens=4, ignore_eos=True),
            )
            for length in (5, 31, 70)
            for sampling in (SamplingParams(temperature=0.0), DRAWN)
        ]
        for handle in asked:
            assert handle.result(WAIT).token_ids == (0, 0, 0, 0)
        stage.close()
    assert [name for key, name in stage.launched.items() if key not in stage.foreseen] == []
    launched = set(stage.launched.values())
    assert {"attend_split", "mix_verify_kernel", "fold_layers_kernel", "settle"} <= launched
    assert kind == "dflash" or {"block_conv_kernel", "pair_scores"} <= launched
