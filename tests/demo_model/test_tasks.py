"""Every family's answers, recomputed from the words of its prompts."""

from __future__ import annotations

import ast
import json
import re
from random import Random

import pytest

from ninfer_demo_model.tasks import EXTRA, FAMILIES, Reply, ToolCall, draw

CASES = 150


def cases(family, **options):
    rng = Random(f"test/{family}")
    return [draw(family, rng, "any", **options) for _ in range(CASES)]


def asked(case):
    return case.messages[-1]["content"]


def items_of(prompt):
    listed = prompt.partition(": ")[2]
    return listed.split(", ") if ", " in listed else listed.split(" ")


def numbers_in(text):
    return [int(n) for n in re.findall(r"\d+", text)]


@pytest.mark.parametrize("family", FAMILIES + EXTRA)
def test_the_own_reply_is_right_and_others_are_wrong(family):
    for case in cases(family):
        assert case.check(case.reply)
        assert not case.check(Reply("something else"))
        assert not case.check(Reply(case.reply.text, "", (ToolCall("no_such_tool", {}),)))
        assert case.messages[-1]["role"] in {"user", "tool"}
        assert case.thinking == (family == "think")
        assert bool(case.reply.reasoning) == case.thinking


@pytest.mark.parametrize("family", FAMILIES + EXTRA)
def test_thinking_adds_a_thought_and_keeps_the_answer(family):
    for case in cases(family, thinking=True):
        assert case.thinking
        assert case.reply.reasoning


def test_copy_and_reverse():
    for case in cases("copy"):
        assert items_of(asked(case)) == re.split(", | ", case.answer)
        assert 1 <= len(items_of(asked(case))) <= 8
    for case in cases("reverse"):
        assert items_of(asked(case)) == list(reversed(re.split(", | ", case.answer)))
        assert 1 <= len(items_of(asked(case))) <= 8


def test_sort():
    falling = 0
    for case in cases("sort"):
        given, answer = numbers_in(asked(case)), numbers_in(case.answer)
        descending = "descending" in asked(case) or "largest to smallest" in asked(case)
        falling += descending
        assert answer == sorted(given, reverse=descending)
        assert 2 <= len(given) <= 8
        assert all(0 <= number <= 99 for number in given)
    assert 0 < falling < CASES


def test_count():
    for case in cases("count"):
        prompt, listed = asked(case), items_of(asked(case))
        target = re.search(r"(?:times does|how often|do you see) (\w+) (?:app|here)", prompt)
        expected = listed.count(target[1]) if target else len(listed)
        assert int(case.answer) == expected, prompt
        assert len(listed) <= 12


def test_arithmetic():
    for case in cases("arithmetic"):
        prompt = asked(case)
        first, second = numbers_in(prompt)
        if "Subtract" in prompt:
            expected = second - first
        elif "minus" in prompt or " - " in prompt:
            expected = first - second
        else:
            expected = first + second
        assert int(case.answer) == expected, prompt
        assert 0 <= expected <= 99


def test_the_documented_wording_occurs():
    prompts = {asked(case) for case in cases("arithmetic")}
    assert any(re.fullmatch(r"What is \d+ \+ \d+\?", prompt) for prompt in prompts)


def test_think():
    for case in cases("think"):
        prompt = asked(case)
        numbers = numbers_in(prompt)
        if prompt.startswith("Which number"):
            rank = ["first", "second", "third", "fourth"]
            place = next((n for n, word in enumerate(rank) if word in prompt), 0)
            expected = sorted(numbers, reverse="largest" in prompt)[place]
        else:
            loss = r"(?:subtract|loses|gives|sells) (\d+)"
            expected = sum(numbers) - 2 * sum(int(n) for n in re.findall(loss, prompt))
        assert int(case.answer) == expected, prompt


@pytest.mark.parametrize("family", [f for f in (*FAMILIES, *EXTRA) if f.startswith("recall")])
def test_recall(family):
    for case in cases(family):
        told = " ".join(m["content"] for m in case.messages if m["role"] == "user")
        question = asked(case).rpartition("\n\n")[2].rpartition(". ")[2]
        subject = re.search(
            r"my (\w+)(?: called| live)|name of my (\w+)|favorite (color)|for the (\w+)\?|"
            r"opens the (\w+)|(?:is|room is) the (\w+)(?:\?| in)|job of (\w+)|does (\w+) work",
            question,
        )
        name = next(group for group in subject.groups() if group)
        fact = rf"\b{name} (?:is called|lives in|is(?: in the)?|works as a) {case.answer}\."
        assert re.search(fact, told), (question, case.answer)


def test_long_recall_is_long(encoder):
    for case in cases("recall_long")[:40]:
        told, asked_again = case.messages[0]["content"], case.messages[-1]["content"]
        whole = len(case.messages) == 1
        between = told.split("\n\n")[1] if whole else case.messages[2]["content"]
        assert asked_again.endswith("?")
        assert len(encoder.ids(between)) > 1500


def test_extract():
    for case in cases("extract"):
        record = json.loads(case.answer)
        prompt = asked(case)
        named = r"(?:Extract|with|Write) (?:the keys )?(?!a JSON)([a-z, ]+?)(?: from| as|\.)"
        keys = re.search(named, prompt)[1]
        assert list(record) == re.split(r", | and ", keys)
        sentence = prompt.replace(keys, "", 1)
        assert all(re.search(rf"\b{re.escape(str(v))}\b", sentence) for v in record.values())


def test_extract_is_judged_as_json():
    case = cases("extract")[0]
    record = json.loads(case.answer)
    assert case.check(Reply(json.dumps(dict(reversed(record.items())), indent=1)))
    assert not case.check(Reply(json.dumps(record | {"more": 1})))


def test_tools():
    for case in cases("tools"):
        (call,) = case.reply.tool_calls
        names = [tool["function"]["name"] for tool in case.tools]
        assert 2 <= len(names) == len(set(names)) <= 4
        schema = case.tools[names.index(call.name)]["function"]["parameters"]
        assert set(call.arguments) == set(schema["required"]) == set(schema["properties"])
        for key, value in call.arguments.items():
            integral = schema["properties"][key]["type"] in {"integer", "number"}
            assert isinstance(value, int) == integral
            assert str(value) in asked(case)
        assert not case.check(Reply(case.answer))


def test_tool_results_are_reported():
    for case in cases("tool_result"):
        assert case.messages[-1]["role"] == "tool"
        assert case.answer == f"The result is {case.messages[-1]['content']}."


def test_system_format():
    def stripped(text, instruction):
        if "bracket" in instruction:
            assert (text[0], text[-1]) == ("[", "]")
            return text[1:-1]
        if "double quotes" in instruction:
            return ast.literal_eval(text)
        if "JSON" in instruction:
            return json.loads(text)["answer"]
        if "capital" in instruction:
            assert text == text.upper()
            return text.lower()
        for mark, kept in (
            ("Answer:", r"Answer: (.*)"),
            ("over", r"(.*) over"),
            ("bullet", r"- (.*)"),
            ("Result", r"Result\n(.*)"),
        ):
            if mark in instruction:
                return re.fullmatch(kept, text)[1]
        raise AssertionError(instruction)

    seen = set()
    for case in cases("system_format"):
        assert case.messages[0]["role"] == "system"
        plain = stripped(case.answer, case.messages[0]["content"])
        seen.add(case.variant)
        prompt = asked(case)
        if re.match("Repeat|Copy|Please copy|Write the same|Say", prompt):
            assert re.split(", | ", plain) == items_of(prompt)
        elif re.search(r"\d+ (?:\+|plus) \d+", prompt):
            assert int(plain) == sum(numbers_in(prompt))
    assert len(seen) == 8
