"""What a device spec means."""

from __future__ import annotations

import pytest

from ninfer_core.device.errors import DeviceError
from ninfer_core.device.spec import DeviceChoice, DeviceSpec, choose_device, parse_device
from ninfer_core.hookspecs.records import Verdict


def agree():
    return Verdict.yes()


def refuse():
    return Verdict.no("no driver")


@pytest.mark.parametrize(
    ("text", "spec", "shown"),
    [
        ("auto", DeviceSpec("auto"), "auto"),
        ("cpu", DeviceSpec("cpu"), "cpu"),
        ("CPU:0", DeviceSpec("cpu"), "cpu"),
        ("cuda", DeviceSpec("cuda", 0), "cuda:0"),
        (" cuda:3 ", DeviceSpec("cuda", 3), "cuda:3"),
    ],
)
def test_specs(text, spec, shown):
    assert parse_device(text) == spec
    assert str(parse_device(text)) == shown


@pytest.mark.parametrize(
    "text", ["", "gpu 0", "cuda:", "cuda:-1", "cuda:x", "0", "cuda:12345", "cpu:1", "auto:2"]
)
def test_what_is_not_a_spec(text):
    with pytest.raises(DeviceError, match="device "):
        parse_device(text)


def test_auto_takes_the_first_that_agrees_and_says_what_the_others_lack():
    offered = {"cuda": refuse, "cpu": agree}
    expected = DeviceChoice(DeviceSpec("cpu"), "cuda: no driver")
    assert choose_device(parse_device("auto"), offered) == expected
    assert choose_device(parse_device("auto"), {"cuda": agree, "cpu": agree}) == DeviceChoice(
        DeviceSpec("cuda"), "first choice"
    )


def test_a_named_device_is_never_replaced():
    with pytest.raises(DeviceError, match="cuda:1 cannot be used: no driver"):
        choose_device(parse_device("cuda:1"), {"cuda": refuse, "cpu": agree})


def test_a_kind_that_is_not_installed_is_said_to_be_so():
    with pytest.raises(
        DeviceError,
        match=r"CUDA device is not provided by the installed plug-ins \(installed: cpu\)",
    ):
        choose_device(parse_device("cuda:0"), {"cpu": agree})


def test_only_the_named_device_is_probed():
    def explode():
        raise AssertionError("probed")

    assert choose_device(parse_device("cpu"), {"cuda": explode, "cpu": agree}).spec.kind == "cpu"


def test_no_usable_device_lists_the_reasons():
    with pytest.raises(DeviceError, match="cuda: no driver"):
        choose_device(parse_device("auto"), {"cuda": refuse})
    with pytest.raises(DeviceError, match="none is installed"):
        choose_device(parse_device("auto"), {})
