from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_qwen3_5.frontend.stops import StopStrings


def first_completed(text, strings):
    """(end, string) by trying every end: the oracle."""
    for end in range(1, len(text) + 1):
        ending = [s for s in strings if text[:end].endswith(s)]
        if ending:
            return end, max(ending, key=len)
    return None


def longest_beginning_at_the_end(text, strings):
    return max((n for s in strings for n in range(len(s)) if text.endswith(s[:n])), default=0)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_agrees_with_brute_force_under_any_chunking(data):
    strings = data.draw(st.lists(st.text("ab.", min_size=1, max_size=5), min_size=1, max_size=3))
    chunks = data.draw(st.lists(st.text("ab.", max_size=4), max_size=8))
    stops, text = StopStrings(strings), ""
    matched = stops.start
    for chunk in chunks:
        scan = stops.scan(matched, chunk)
        expected = first_completed(text + chunk, strings)
        if expected is not None:
            assert (len(text) + scan.end, scan.stop) == expected
            return
        text, matched = text + chunk, scan.matched
        assert scan.stop is None
        assert stops.withheld(matched) == longest_beginning_at_the_end(text, strings)


def test_unarmed_strings_are_text_and_the_search_goes_on():
    stops = StopStrings(["abab"])
    scan = stops.scan(stops.start, "xabab", armed=False)
    assert scan.stop is None
    assert stops.withheld(scan.matched) == 2
    assert stops.scan(scan.matched, "ab").stop == "abab"


def test_without_strings_nothing_is_withheld():
    stops = StopStrings([])
    assert stops.scan(stops.start, "abc") == ((), 3, None)
    assert stops.withheld(stops.start) == 0
