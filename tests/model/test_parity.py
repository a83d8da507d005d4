"""Our logits against transformers', over random shapes, chunk splits and batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from ninfer_core.testing.program_driver import Driven, ProgramDriver

TOLERANCE = 2e-4
SHAPES = (
    "untied",
    "tied",
    "wide_values",
    "one_kv_head",
    "large_head",
    "all_attention_last",
    "equal_heads",
)


class Recorder:
    """Keeps every block of logits that the head computed."""

    def __init__(self, case) -> None:
        self.blocks: list[torch.Tensor] = []
        head = case.model.ops.norm_head

        def recorded(*args: object) -> torch.Tensor:
            logits = head(*args)
            self.blocks.append(logits.clone())
            return logits

        self.ops = dataclasses.replace(case.model.ops, norm_head=recorded)


def oracle_logits(case, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return case.oracle(torch.tensor([token_ids])).logits[0]


def prompts(seed: int, lengths: list[int], vocab: int = 300) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture
def recorded(build_case, monkeypatch) -> Callable[[str], tuple[object, Recorder]]:
    def make(name: str):
        case = build_case(name)
        recorder = Recorder(case)
        monkeypatch.setattr(case.model, "ops", recorder.ops)
        return case, recorder

    return make


@pytest.mark.parametrize("chunk", [256, 128, 64])
@pytest.mark.parametrize("name", SHAPES)
def test_prompt_logits_equal_the_oracle_for_one_to_three_splits(recorded, name, chunk) -> None:
    case, recorder = recorded(name)
    driver = case.driver(prefill_chunk=chunk)
    (prompt,) = prompts(1, [167])
    driver.prefill(driver.bind(prompt))
    expected = oracle_logits(case, prompt)[-1]
    assert expected.std() >= 1
    assert (recorder.blocks[-1][0] - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("batch", range(1, 9))
@pytest.mark.parametrize("name", SHAPES)
def test_batched_decode_logits_equal_the_oracle_row_by_row(
    recorded, exact_logits, name, batch
) -> None:
    """Where the oracle's own float32 is further than the tolerance from exact anywhere, twice that
    is the bound: a chunk's triangular system can be that ill-conditioned, for whom is chance."""
    case, recorder = recorded(name)
    driver = case.driver()
    lengths = [1, 5, 63, 64, 65, 100, 129, 30][:batch]
    rows = [driver.bind(p, lane=i) for i, p in enumerate(prompts(2, lengths))]
    for row in rows:
        driver.prefill(row)
    off, noise = [], []
    for _ in range(6):
        recorder.blocks.clear()
        before = [[*row.request.prepared.token_ids.tolist(), *row.tokens] for row in rows]
        driver.decode(rows)
        for ids, logits in zip(before, recorder.blocks[-1], strict=True):
            exact = exact_logits(case, ids)[-1]
            off.append(float((logits - exact).abs().max()))
            noise.append(float((oracle_logits(case, ids)[-1] - exact).abs().max()))
    assert max(off) <= max(TOLERANCE, 2 * max(noise))


def test_padding_rows_of_the_head_are_never_sampled(build_case, monkeypatch) -> None:
    case = build_case("untied")
    monkeypatch.setattr(case.model, "addressable", 3)
    driver = case.driver()
    row = driver.bind([1, 2, 0])
    assert set(driver.generate(row, 20)) <= {0, 1, 2}


def test_the_head_runs_only_for_sampled_rows(build_case) -> None:
    case = build_case("tied")
    driver = case.driver()
    case.head_rows.clear()
    row = driver.bind(prompts(3, [200])[0])
    driver.generate(row, 5)
    assert case.head_rows == [1] * 5


def test_prompt_logprobs_equal_the_oracle(build_case) -> None:
    from ninfer_core.contract.checkpoints import OutputRules

    case = build_case("wide_values")
    driver = case.driver()
    (prompt,) = prompts(4, [150])
    row = driver.bind(prompt, rules=OutputRules(max_new_tokens=1, prompt_logprobs=3))
    driver.prefill(row)
    law = oracle_logits(case, prompt).log_softmax(-1)
    assert [entry.token_id for entry in row.scored] == prompt[1:]
    for position, entry in enumerate(row.scored):
        assert entry.logprob == pytest.approx(law[position, prompt[position + 1]].item(), abs=2e-4)
        best = law[position].topk(3).values.tolist()
        assert [top.logprob for top in entry.top] == pytest.approx(best, abs=2e-4)


def test_scoring_equals_the_oracle(build_case) -> None:
    from ninfer_core.contract.instance import Budget
    from ninfer_core.device.cpu import open_device
    from ninfer_qwen3_5.program.assemble import scoring_program

    case = build_case("one_kv_head")
    budget = Budget(max_context=256, max_concurrency=1, prefill_chunk=64)
    scoring, _ = scoring_program(case.model, budget, open_device(0))
    (text,) = prompts(5, [140])
    law = oracle_logits(case, text).log_softmax(-1)
    for first in (1, 64, 65, 139):
        expected = [law[i - 1, text[i]].item() for i in range(first, len(text))]
        assert scoring.score(text, first) == pytest.approx(expected, abs=2e-4)


def greedy_oracle(case, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(oracle_logits(case, ids)[-1].argmax()))
    return ids[len(prompt) :]


def test_a_paused_sequence_replays_to_the_same_bits(build_case) -> None:
    from ninfer_core.contract.checkpoints import ResumeKind

    case = build_case("untied")
    (prompt,) = prompts(6, [90])

    def start(driver: ProgramDriver) -> Driven:
        from ninfer_core.contract.checkpoints import OutputRules

        return driver.bind(prompt, rules=OutputRules(max_new_tokens=64, logprobs=2))

    straight = case.driver()
    expected = start(straight)
    straight.generate(expected, 24)
    paused = case.driver()
    row = start(paused)
    paused.generate(row, 11)
    plan = paused.program.plan_pause(row.handle, ResumeKind.REPLAY)
    resume = paused.pause(row, plan)
    paused.program.check()
    assert paused.program.capacity().available == paused.program.capacity().total
    again = paused.adopt(dataclasses.replace(row.request, source=resume))
    again.tokens, again.logprobs = row.tokens, row.logprobs
    paused.prefill(again)
    paused.generate(again, 24)
    assert again.tokens == expected.tokens
    assert again.logprobs == expected.logprobs
