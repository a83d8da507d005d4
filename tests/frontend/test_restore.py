from __future__ import annotations

from random import Random

import pytest

from ninfer_core.contract.frontend import RestoreKind as Kind
from ninfer_core.contract.requests import (
    CacheMarker,
    CacheMode,
    CacheRequest,
    ChatOptions,
    PromptInput,
)

SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "hi"}
THINKS = {"role": "assistant", "reasoning_content": "hm", "content": "yes"}
CALLS = {
    "role": "assistant",
    "reasoning_content": "look",
    "content": "",
    "tool_calls": [{"function": {"name": "search", "arguments": {"query": "x"}}}],
}
RESULT = {"role": "tool", "content": "found"}


def places(frontend, messages, *, tools=(), chat=None, **cache):
    """{rendered text before the frontier: kind}, after checking that frontiers are exact."""
    prompt = PromptInput(
        messages=messages, tools=tools, chat=chat or ChatOptions(), cache=CacheRequest(**cache)
    )
    prepared = frontend.prepare(prompt)
    ids = prepared.token_ids.tolist()
    frontiers = [point.frontier for point in prepared.restore_points]
    assert frontiers == sorted(set(frontiers))
    assert all(0 < frontier < len(ids) for frontier in frontiers)
    text = frontend.render(prompt)
    found = {}
    for point in prepared.restore_points:
        before = frontend.detokenize(ids[: point.frontier])
        assert text.startswith(before)
        found[before] = point.kind
    return found


def rendered(text):
    return text.replace("[", "<|im_start|>").replace("]", "<|im_end|>\n").replace("/", "\n")


def test_one_question(frontend):
    assert places(frontend, [SYSTEM, USER]) == {
        rendered("[system/Be kind.]"): Kind.SYSTEM_AND_TOOLS,
        rendered("[system/Be kind.][user/hi]"): Kind.RESPONSE_REPLAY,
    }


def test_without_system_and_tools_there_is_no_block(frontend):
    assert places(frontend, [USER]) == {rendered("[user/hi]"): Kind.RESPONSE_REPLAY}


def test_tools_alone_are_a_block(frontend, tools):
    found = places(frontend, [USER], tools=tools)
    (block,) = [text for text, kind in found.items() if kind is Kind.SYSTEM_AND_TOOLS]
    assert block.endswith("</tools><|im_end|>\n")


def test_user_messages_end_at_a_boundary_and_begin_at_one_behind_an_answer(frontend):
    second = {"role": "user", "content": "and?"}
    assert places(frontend, [USER, THINKS, second]) == {
        rendered("[user/hi]"): Kind.USER_MESSAGE,
        rendered("[user/hi][assistant/yes]"): Kind.TURN_CLOSURE,
        rendered("[user/hi][assistant/yes][user/and?]"): Kind.RESPONSE_REPLAY,
    }


def test_a_turn_in_progress_is_rewritten_from_its_beginning(frontend, tools):
    found = places(frontend, [USER, CALLS, RESULT])
    assert found[rendered("[user/hi]")] is Kind.TURN_CLOSURE
    replay = max(found, key=len)
    assert found[replay] is Kind.RESPONSE_REPLAY
    assert replay.endswith("\n</tool_response><|im_end|>\n")
    assert len(found) == 2


def test_a_template_that_keeps_thoughts_rewrites_nothing(frontend):
    chat = ChatOptions(template_kwargs={"preserve_thinking": True})
    found = places(frontend, [USER, CALLS, RESULT], chat=chat)
    assert found[rendered("[user/hi]")] is Kind.USER_MESSAGE


def test_a_continued_response_is_replayed_from_its_turn(frontend):
    open_end = {"role": "assistant", "content": "It is"}
    found = places(frontend, [USER, open_end], chat=ChatOptions(continue_final=True))
    assert found == {rendered("[user/hi]"): Kind.RESPONSE_REPLAY}


def test_no_cache_no_points(frontend):
    assert places(frontend, [SYSTEM, USER], mode=CacheMode.DISABLED) == {}


def test_many_user_messages_are_bounded_from_the_end(frontend):
    messages = [{"role": "user", "content": str(i)} for i in range(40)]
    found = places(frontend, messages)
    assert len(found) == 16
    assert max(found, key=len).endswith("39<|im_end|>\n")
    assert min(found, key=len).endswith("24<|im_end|>\n")


def marked(frontend, messages, *markers):
    found = places(frontend, messages, markers=markers)
    return [text for text, kind in found.items() if kind is Kind.EXPLICIT]


def test_a_marker_on_a_message_is_the_end_of_its_turn(frontend):
    messages = [SYSTEM, USER, THINKS, {"role": "user", "content": "and?"}]
    turns = ["[system/Be kind.]", "[user/hi]", "[assistant/yes]", "[user/and?]"]
    for index in range(4):
        expected = rendered("".join(turns[: index + 1]))
        assert marked(frontend, messages, CacheMarker(message=index)) == [expected]


def test_a_marker_on_a_part_is_the_end_of_its_text(frontend):
    parts = [{"type": "text", "text": text} for text in ("one.\n", "two", " three")]
    messages = [SYSTEM, {"role": "user", "content": parts}]
    lead = rendered("[system/Be kind.][user/")
    assert marked(frontend, messages, CacheMarker(message=1, part=1)) == [lead + "one.\ntwo"]
    whole = CacheMarker(message=1, part=2)
    assert marked(frontend, messages, whole) == [lead + "one.\ntwo three<|im_end|>\n"]


def test_a_marker_inside_a_token_moves_back_to_its_start(frontend):
    assert len(frontend.tokenize(" brown")) == 1
    parts = [{"type": "text", "text": text} for text in ("quick bro", "wn fox")]
    messages = [{"role": "user", "content": parts}]
    (place,) = marked(frontend, messages, CacheMarker(message=0, part=0))
    assert place == rendered("[user/quick")


def test_markers_on_merged_system_messages_keep_their_place(frontend):
    messages = [
        {"role": "system", "content": "Be kind"},
        {"role": "developer", "content": "!"},
        USER,
    ]
    first = marked(frontend, messages, CacheMarker(message=0))
    assert first == [rendered("[system/Be kind")]
    second = marked(frontend, messages, CacheMarker(message=1))
    assert second == [rendered("[system/Be kind//!]")]


def test_a_marker_beyond_the_messages_is_left_out(frontend):
    assert marked(frontend, [USER], CacheMarker(message=5)) == []


def test_a_template_without_turns_gives_no_points(opened, artifact):
    artifact.resources["chat_template.jinja"] = b"{{ messages | length }} abc"
    assert places(opened(artifact), [SYSTEM, USER]) == {}


def test_a_boundary_inside_a_token_is_left_out(opened, artifact, frontend):
    assert len(frontend.tokenize(" brown")) == 1
    source = "{{ messages[0].content }}{% if add_generation_prompt %}own fox{% endif %}"
    artifact.resources["chat_template.jinja"] = source.encode()
    assert places(opened(artifact), [{"role": "user", "content": "a br"}]) == {}
    found = places(opened(artifact), [{"role": "user", "content": "a brown<think>"}])
    assert found == {"a brown<think>": Kind.RESPONSE_REPLAY}


@pytest.mark.parametrize("seed", range(25))
def test_points_of_growing_conversations_are_prefixes_of_what_follows(frontend, seed):
    """What a point promises: the next turn's prompt begins with the same tokens."""
    rng = Random(seed)
    messages = [SYSTEM] if rng.random() < 0.5 else []
    previous = None
    for _ in range(4):
        messages.append({"role": "user", "content": f"question {rng.random()}"})
        if rng.random() < 0.5:
            messages += [CALLS, RESULT]
        prepared = frontend.prepare(PromptInput(messages=messages))
        if previous is not None:
            lasting = [p for p in previous.restore_points if p.kind is not Kind.RESPONSE_REPLAY]
            if not any(p.kind is Kind.TURN_CLOSURE for p in lasting):
                lasting = list(previous.restore_points)
            for point in lasting:
                ids = previous.token_ids[: point.frontier].tolist()
                assert prepared.token_ids[: point.frontier].tolist() == ids
        previous = prepared
        messages.append(THINKS)
