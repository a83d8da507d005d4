"""Waiting for a flag: it is seen, checked for a lost device, and given up in the end."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import pytest
import torch

from ninfer_core.device.errors import DeviceError, DeviceLost, DeviceTimeout
from ninfer_core.device.flags import Flag, set_timer_slack


@pytest.fixture
def word():
    return torch.zeros(8, dtype=torch.int32)[3]


def set_later(word, value, seconds):
    def run():
        time.sleep(seconds)
        word.fill_(value)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_word_is_read_where_it_lies(word):
    flag = Flag(word)
    word.fill_(-5)
    assert flag.read() == -5
    word.fill_(7)
    assert flag.read() == 7


def test_a_flag_that_is_set_is_not_waited_for(word):
    def never():
        raise AssertionError("checked")

    Flag(word).wait(0, 3600.0, check=never, deadline_seconds=0.0)


@pytest.mark.parametrize("expected", [0.0, 1e-4, 0.02, 0.03])
def test_it_returns_when_the_value_is_there_and_not_before(word, expected):
    setter = set_later(word, 2, 0.02)
    Flag(word).wait(2, expected, what="round 9")
    assert word.item() == 2
    setter.join()


def test_another_value_is_not_the_awaited_one(word):
    word.fill_(1)
    with pytest.raises(DeviceTimeout, match=r"round 9 did not end .* its flag is 1, not 2"):
        Flag(word).wait(2, 0.0, what="round 9", deadline_seconds=0.01)


def test_a_long_sleep_is_followed_by_one_rehearsal(word):
    rehearsed = []

    def rehearse():
        rehearsed.append(word.item())
        word.fill_(1)

    overslept = Flag(word).wait(1, 0.01, rehearse=rehearse)
    assert rehearsed == [0]
    assert overslept, "nobody looked when the word changed"


def test_a_short_sleep_is_not(word):
    def rehearse():
        raise AssertionError("rehearsed")

    setter = set_later(word, 1, 0.01)
    assert not Flag(word).wait(1, 1e-3, rehearse=rehearse)
    setter.join()


def test_a_sleep_past_the_end_is_known(word):
    def rehearse():
        raise AssertionError("rehearsed")

    assert Flag(word).wait(1, 0.3, check=lambda: word.fill_(1), rehearse=rehearse)
    assert not Flag(word).wait(1, 0.3), "it was up at the first look"


@pytest.mark.parametrize("expected", [0.0, 3600.0])
def test_a_deadline_ends_the_wait_however_long_it_was_to_take(word, expected):
    with pytest.raises(DeviceTimeout, match=r"within 0.02 s") as error:
        Flag(word).wait(1, expected, deadline_seconds=0.02)
    assert error.value.exit_code == 1


@pytest.mark.parametrize("expected", [0.0, 3600.0])
def test_a_lost_device_is_noticed_while_waiting(word, expected):
    looks = []

    def check():
        looks.append(1)
        if len(looks) == 3:
            raise DeviceLost("cuda:0 was lost")

    with pytest.raises(DeviceLost):
        Flag(word).wait(1, expected, check=check, deadline_seconds=30.0)
    assert len(looks) == 3


@pytest.mark.parametrize(
    "word", [torch.zeros(2, dtype=torch.int32), torch.zeros(1), torch.zeros(1, device="meta").int()]
)
def test_what_is_not_a_flag(word):
    with pytest.raises(DeviceError, match="a flag is one int32 in host memory"):
        Flag(word)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux sets it")
def test_timer_slack_is_the_calling_thread_s():
    get = 30  # PR_GET_TIMERSLACK
    seen = []

    def run():
        seen.append(set_timer_slack(1234))
        seen.append(ctypes.CDLL(None).prctl(get))

    before = ctypes.CDLL(None).prctl(get)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True, 1234]
    assert ctypes.CDLL(None).prctl(get) == before
