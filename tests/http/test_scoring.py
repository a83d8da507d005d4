"""Log-probabilities of prompts against transformers, as a scorer asks for them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

CHECKPOINT = Path(__file__).parents[2] / "plugins" / "demo_model" / "checkpoint"
CLOSE = 5e-4
TEXTS = [
    "The three most important",
    "Sort these numbers: 12, 7, 44. Größe, 日本 😀!",
    "Hello<|im_end|>\n<|im_start|>user\nWhat is 17 + 25?",
]


@pytest.fixture(scope="module")
def oracle():
    from transformers import Qwen3_5ForCausalLM

    return Qwen3_5ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def score(oracle):
    """All log-probabilities f32[n - 1, V] that transformers gives after the tokens but the last."""

    def rows(ids):
        with torch.inference_mode():
            return oracle(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)

    return rows


def tokens(demo, text):
    return demo.post("/tokenize", prompt=text).json["tokens"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("limit", [0, 1])
def test_echoed_logprobs_are_those_of_transformers(demo, score, text, limit):
    ids = tokens(demo, text)
    fields = {"max_tokens": limit, "echo": True, "logprobs": 1, "temperature": 0}
    reply = demo.post("/v1/completions", prompt=text, return_token_ids=True, **fields).json
    [choice] = reply["choices"]
    found = choice["logprobs"]
    ids += choice["token_ids"]
    expected = score(ids)
    own = expected.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    assert found["token_logprobs"][1:] == pytest.approx(own, abs=CLOSE)
    best = [max(top.values()) for top in found["top_logprobs"][1:]]
    assert best == pytest.approx(expected.max(-1).values.tolist(), abs=CLOSE)
    assert len(found["tokens"]) == len(found["text_offset"]) == len(ids)
    assert reply["usage"]["completion_tokens"] == limit
    assert choice["text"].startswith(text)


def test_offsets_are_those_of_the_text(demo):
    text = TEXTS[1]
    fields = {"max_tokens": 0, "echo": True, "logprobs": 0}
    [choice] = demo.post("/v1/completions", prompt=text, **fields).json["choices"]
    assert choice["text"] == text
    found = choice["logprobs"]
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert text.startswith(token, offset)
        else:
            assert not text[offset].isascii()


def test_a_continuation_scored_as_harnesses_do_it(demo, score):
    """Token ids of context and continuation, one token more than is read, sums per request."""
    pairs = [("Repeat these words: church,", " church"), ("What is 2 + 2?", " 4")]
    prompts, starts = [], []
    for context, continuation in pairs:
        whole = tokens(demo, context + continuation)
        prompts.append(whole)
        starts.append(len(tokens(demo, context)))
    fields = {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234}
    reply = demo.post("/v1/completions", prompt=prompts, **fields).json
    for choice, ids, start in zip(reply["choices"], prompts, starts, strict=True):
        theirs = choice["logprobs"]["token_logprobs"][start:-1]
        own = score(ids).gather(1, torch.tensor(ids[1:])[:, None])[:, 0][start - 1 :]
        assert len(theirs) == len(ids) - start > 0
        assert sum(theirs) == pytest.approx(float(own.sum()), abs=len(theirs) * CLOSE)


def test_prompt_logprobs_do_not_depend_on_what_was_asked_before(demo, score):
    text = "Keep this in mind. " + " ".join(f"The code of room {n} is {n * 37}." for n in range(24))
    ids = tokens(demo, text)
    assert len(ids) >= 250
    vectors = []
    for order, salt in (((True, False), None), ((False, True), None), ((True, True), "apart")):
        # What was asked under another salt is not reused.
        fields = {"max_tokens": 1, "temperature": 0, "cache_salt": salt}
        for scored in order:
            if not scored:
                demo.post("/v1/completions", prompt=text, **fields)
                continue
            reply = demo.post("/v1/completions", prompt=text, prompt_logprobs=1, **fields)
            [choice] = reply.json["choices"]
            assert choice["prompt_logprobs"][0] is None
            rows = choice["prompt_logprobs"][1:]
            vectors.append([row[str(i)]["logprob"] for row, i in zip(rows, ids[1:], strict=True)])
    own = score(ids).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert len(vectors) == 4
    for vector in vectors:
        assert vector == pytest.approx(own, abs=CLOSE)


def test_chat_prompts_are_scored_with_their_template(demo, score):
    body = {
        "messages": [{"role": "user", "content": "What is 17 + 25?"}],
        "max_tokens": 0,
        "prompt_logprobs": 2,
        "return_token_ids": True,
    }
    for stream in (False, True):
        reply = demo.post("/v1/chat/completions", stream=stream, **body)
        whole = reply.events[0] | reply.events[-2] if stream else reply.json
        ids, rows = whole["prompt_token_ids"], whole["prompt_logprobs"]
        assert len(ids) == len(rows)
        expected = score(ids)
        top = expected.topk(2)
        for at, row in enumerate(rows[1:]):
            assert row[str(ids[at + 1])]["logprob"] == pytest.approx(
                float(expected[at, ids[at + 1]]), abs=CLOSE
            )
            ranked = sorted(
                (entry["rank"], entry["logprob"]) for entry in row.values() if entry["rank"]
            )
            assert [rank for rank, _ in ranked] == [1, 2]
            assert [value for _, value in ranked] == pytest.approx(
                top.values[at].tolist(), abs=CLOSE
            )


def test_generated_logprobs_are_those_of_transformers(demo, score):
    reply = demo.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "Say this: tomato, canyon"}],
        logprobs=True,
        top_logprobs=3,
        temperature=0,
        return_token_ids=True,
    ).json
    [choice] = reply["choices"]
    prompt, ids = reply["prompt_token_ids"], choice["token_ids"]
    content = choice["logprobs"]["content"]
    expected = score([*prompt, *ids])[len(prompt) - 1 :]
    assert len(content) == len(ids)
    for at, row in enumerate(content):
        assert row["logprob"] == pytest.approx(float(expected[at, ids[at]]), abs=CLOSE)
        tops = [top["logprob"] for top in row["top_logprobs"]]
        assert tops == pytest.approx(expected[at].topk(3).values.tolist(), abs=CLOSE)
    spelled = b"".join(bytes(row["bytes"]) for row in content[:-1]).decode()
    assert spelled == choice["message"]["content"]
    assert math.isfinite(sum(row["logprob"] for row in content))
