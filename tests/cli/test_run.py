"""`ninfer run`: what goes to stdout, what to stderr, and what reaches the engine."""

from __future__ import annotations

import json

import pytest

from ninfer_core.contract.events import FinishReason
from ninfer_core.testing.scripted_engine import plain_text
from ninfer_core.testing.scripted_reply import Reply


def always(reply):
    return lambda prompt, options: reply


def test_stdout_has_the_text_alone(ninfer):
    ninfer.script = always(Reply.of("forty-two\n\n½", reasoning="17 + 25 …"))
    done = ninfer("run", "demo", "--prompt", "What is 17 + 25?")
    assert (done.code, done.out) == (0, "forty-two\n\n½\n")
    assert "17 + 25 …" in done.err
    # "user: What is 17 + 25?" has 22 bytes, the answer 12 and the thinking 11
    assert "prompt 22 tokens in 0.50 s (44.0/s)" in done.err
    assert "answer 24 tokens in 0.25 s (96.0/s)" in done.err
    assert ninfer.engine.closed


def test_an_answer_that_ends_its_line_gets_no_second_end(ninfer):
    ninfer.script = always(Reply.of("one\n"))
    assert ninfer("run", "demo", "--prompt", "x").out == "one\n"


def test_calls_are_readable_on_stderr(ninfer):
    ninfer.script = always(Reply.of("").call("weather", '{"city": ', '"Köln"}'))
    done = ninfer("run", "demo", "--prompt", "x")
    assert (done.code, done.out) == (0, "")
    assert 'tool call call_0: weather({"city": "Köln"})' in done.err


def test_json_is_one_object(ninfer):
    ninfer.script = always(Reply.of("½", reasoning="hm").call("f", "{}"))
    answer = ninfer("run", "demo", "--prompt", "abc", "--json", "--seed", "5").json
    assert answer["model"] == "scripted"
    assert (answer["text"], answer["reasoning"]) == ("½", "hm")
    assert answer["tool_calls"] == [{"id": "call_0", "name": "f", "arguments": "{}"}]
    assert answer["finish_reason"] == "stop_token"
    # "user: abc"; two bytes of ½, two of thinking, three of the call
    assert answer["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 7,
        "total_tokens": 16,
        "cached_tokens": 0,
        "reasoning_tokens": 2,
    }
    assert answer["timings"]["prefill"] == 0.5
    assert answer["seed"] == 5
    assert "token_ids" not in answer
    assert "logprobs" not in answer


def test_json_with_ids_logprobs_and_raw_text(ninfer):
    ninfer.script = always(Reply.of("hi", reasoning="m"))
    flags = ["--json", "--print-token-ids", "--logprobs", "1", "--raw-output"]
    answer = ninfer("run", "demo", "--prompt", "x", *flags).json
    assert answer["token_ids"] == [ord("m"), ord("h"), ord("i")]
    assert answer["raw"] == "mhi"
    assert answer["logprobs"][2] == {
        "token_id": ord("i"),
        "token": "i",
        "logprob": -0.5,
        "top": [{"token_id": ord("i"), "token": "i", "logprob": -0.5}],
    }


def test_raw_output_is_every_token_and_no_half_character(ninfer):
    ninfer.script = always(Reply.of("é½", reasoning="so").call("f", "{}"))
    assert ninfer("run", "demo", "--prompt", "x", "--raw-output").out == "soé½f{}\n"


def test_token_ids_go_to_stderr(ninfer):
    ninfer.script = always(Reply.of("hi"))
    done = ninfer("run", "demo", "--prompt", "x", "--print-token-ids")
    assert done.out == "hi\n"
    assert "token ids: 104 105" in done.err


def test_the_model_left_out_is_said(ninfer, artifact, monkeypatch, tmp_path):
    done = ninfer("run", "--prompt", "x")
    assert "MODEL not given" in done.err
    assert "'demo'" in done.err
    assert ninfer.opened[0][0] == artifact
    other = tmp_path / "other.ninfer"
    other.touch()
    monkeypatch.setenv("NINFER_MODEL", str(other))
    done = ninfer("run", "--prompt", "x")
    assert f"$NINFER_MODEL={other}" in done.err
    assert ninfer.opened[1][0] == other
    assert "MODEL" not in ninfer("run", "demo", "--prompt", "x").err


@pytest.mark.parametrize("arguments", [["demo", "-"], ["-"]])
def test_the_prompt_from_stdin(ninfer, arguments):
    assert ninfer("run", *arguments, stdin="two\nlines").out == "two\nlines\n"
    assert plain_text(ninfer.engine.requests[0][0]) == "user: two\nlines"


def test_messages_from_a_file_or_stdin(ninfer, tmp_path):
    turns = [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    for value in (turns, {"messages": turns}):
        (tmp_path / "m.json").write_text(json.dumps(value))
        done = ninfer("run", "demo", "--messages", str(tmp_path / "m.json"), "--system", "s")
        assert done.code == 0
        asked = plain_text(ninfer.engine.requests[0][0])
        assert asked == "system: s\nuser: a\nsystem: b\nuser: c"
    assert ninfer("run", "demo", "--messages", "-", stdin=json.dumps(turns)).out == "c\n"


def test_tools_reach_the_prompt(ninfer, tmp_path):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    (tmp_path / "t.json").write_text(json.dumps([tool]))
    assert ninfer("run", "demo", "--prompt", "x", "--tools", str(tmp_path / "t.json")).code == 0
    [given] = ninfer.engine.requests[0][0].tools
    assert given["function"]["name"] == "f"


def test_flags_reach_the_engine(ninfer, tmp_path):
    (tmp_path / "t.jinja").touch()
    flags = """--temperature 0.7 --top-p 0.9 --top-k 4 --min-p 0.01 --presence-penalty 0.5
        --frequency-penalty 0.25 --repetition-penalty 1.1 --seed 9 --max-new 5 --min-tokens 2
        --stop a --stop b --stop-token-id 7 --ignore-eos --no-thinking --thinking-budget 3
        --reasoning-effort low --device cpu --max-context 512 --kv-capacity 1024
        --prefill-chunk 128 --kv-dtype fp32 --activations a16 --chat-template""".split()
    done = ninfer("run", "demo", "--prompt", "x", *flags, str(tmp_path / "t.jinja"))
    assert done.code == 0
    [(prompt, options)] = ninfer.engine.requests
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 4)
    assert (sampling.min_p, sampling.presence_penalty) == (0.01, 0.5)
    assert (sampling.frequency_penalty, sampling.repetition_penalty) == (0.25, 1.1)
    assert (sampling.seed, options.max_new_tokens, options.min_tokens) == (9, 5, 2)
    assert (options.stop, options.stop_token_ids) == (("a", "b"), (7,))
    assert (options.ignore_eos, options.thinking_budget) == (True, 3)
    assert (prompt.chat.thinking, prompt.chat.effort) == (False, "low")
    start = ninfer.opened[0][1]
    assert (start.devices, start.max_context, start.kv_tokens) == (("cpu",), 512, 1024)
    assert (start.prefill_chunk, start.kv_format) == (128, "fp32")
    assert start.activations == "a16"
    assert start.chat_template == tmp_path / "t.jinja"


def test_what_is_left_out_is_the_models_default(ninfer):
    ninfer("run", "demo", "--prompt", "x")
    [(prompt, options)] = ninfer.engine.requests
    assert (options.sampling.temperature, options.sampling.top_k) == (0.5, 20)
    assert options.sampling.seed is not None
    assert options.max_new_tokens is None
    assert prompt.chat.thinking is None


def test_greedy_is_temperature_zero(ninfer):
    done = ninfer("run", "demo", "--prompt", "x", "--greedy")
    assert ninfer.engine.requests[0][1].sampling.greedy
    assert "seed" not in done.err


def test_a_clamped_limit_is_said(ninfer):
    ninfer.settings = {"max_context": 20}
    done = ninfer("run", "demo", "--prompt", "x", "--max-new", "100", "--json")
    assert done.json["notes"] == ["max_new_tokens was clamped from 100 to 13"]
    done = ninfer("run", "demo", "--prompt", "x", "--max-new", "100")
    assert "note: max_new_tokens was clamped from 100 to 13" in done.err


def test_the_limit_is_the_finish_reason(ninfer):
    ninfer.script = always(Reply.of("abcdef"))
    answer = ninfer("run", "demo", "--prompt", "x", "--max-new", "3", "--json").json
    assert answer["text"] == "abc"
    assert answer["finish_reason"] == FinishReason.OUTPUT_LIMIT.value
