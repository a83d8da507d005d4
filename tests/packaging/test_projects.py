"""What the pyproject files say together."""

from __future__ import annotations

import re

import pytest
from packaging.version import Version

from ninfer_core.version import API, __version__

REQUIRED_BY_QWEN = [
    "ninfer-demo-model",
    "ninfer-gateway-cli",
    "ninfer-gateway-http",
    "ninfer-grammar-xgrammar",
    "ninfer-ops-triton",
    "ninfer-spec-mtp",
]


def plugins(projects):
    return {name: p for name, p in projects.items() if name != "ninfer-core"}


def test_the_distributions(projects):
    extras = ["ninfer-core", "ninfer-qwen3_5", "ninfer-spec-dflash", "ninfer-vision"]
    assert sorted(projects) == sorted([*REQUIRED_BY_QWEN, *extras])


def test_one_version_for_all(projects):
    assert projects["ninfer-core"]["project"]["dynamic"] == ["version"]
    versions = {name: p["project"]["version"] for name, p in plugins(projects).items()}
    assert set(versions.values()) == {__version__}


def test_every_plugin_bounds_core_and_declares_the_api(projects):
    ours = Version(__version__)
    bound = f">={ours.major}.{ours.minor},<{ours.major}.{ours.minor + 1}"
    for name, project in plugins(projects).items():
        requires = [d for d in project["project"]["dependencies"] if d.startswith("ninfer-core")]
        assert [re.sub(r"\[\w+]", "", d) for d in requires] == [f"ninfer-core{bound}"], name
    for name, project in projects.items():
        assert f"ninfer-api-{API[0]}.{API[1]}" in project["project"]["keywords"], name


def test_every_plugin_is_one_light_entry_point(projects):
    for name, project in plugins(projects).items():
        package = f"ninfer_{project['folder'].name}"
        entry_points = project["project"]["entry-points"]
        assert entry_points == {"ninfer": {project["folder"].name: f"{package}.plugin"}}, name
        assert (project["folder"] / package / "plugin.py").is_file()
        assert (project["folder"] / package / "py.typed").is_file()


def test_qwen_requires_what_a_working_command_needs(projects):
    project = projects["ninfer-qwen3_5"]["project"]
    names = [re.split(r"[\[><=; ]", d)[0] for d in project["dependencies"]]
    assert sorted(n for n in names if n.startswith("ninfer-") and n != "ninfer-core") == (
        REQUIRED_BY_QWEN
    )
    assert {"jinja2", "safetensors", "tokenizers"} <= set(names)
    assert sorted(project["optional-dependencies"]) == ["dflash", "vision"]


def test_gpu_packages_are_for_linux_and_triton_is_open(projects):
    core = projects["ninfer-core"]["project"]
    assert "torch>=2.11" in core["dependencies"]
    cuda = core["optional-dependencies"]["cuda"]
    ops = projects["ninfer-ops-triton"]["project"]["dependencies"]
    for line in [*cuda, next(d for d in ops if d.startswith("triton"))]:
        assert line.endswith("; sys_platform == 'linux'")
        assert "==" not in line.partition(";")[0]
        assert "<" not in line
    assert any(d.startswith("cupy-cuda13x") for d in cuda)


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_requirements_files(root, projects, file):
    lines = (root / file).read_text().splitlines()
    assert lines[0] == "torch>=2.11,<2.14"
    folders = {line.split()[1].partition("[")[0] for line in lines if line.startswith("-e ")}
    for folder in folders:
        assert (root / folder / "pyproject.toml").is_file()


def test_dev_requirements_install_every_distribution(root, projects):
    text = (root / "requirements.txt").read_text() + (root / "requirements-dev.txt").read_text()
    lines = text.splitlines()
    for name, project in plugins(projects).items():
        assert f"-e plugins/{project['folder'].name}" in lines, name
    assert "-e ." in lines
