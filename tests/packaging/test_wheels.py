"""The built wheels: their content, their metadata, and that pip resolves them together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest
from packaging.requirements import Requirement

MAX_WHEEL_BYTES = 24_000_000


@pytest.fixture(scope="module")
def dist(root, tmp_path_factory):
    """A folder with the wheel of every distribution."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, str(root / "tools" / "build_wheels.py"), str(folder)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def wheels(dist):
    """Distribution name to its opened wheel."""
    return {_metadata(z := zipfile.ZipFile(path))["Name"]: z for path in sorted(dist.iterdir())}


def _metadata(wheel):
    [name] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def test_every_distribution_builds(wheels, projects):
    assert sorted(wheels) == sorted(projects)


def test_wheels_hold_one_package_and_nothing_else(wheels, projects):
    for name, wheel in wheels.items():
        tops = {entry.split("/")[0] for entry in wheel.namelist()}
        [package] = [top for top in tops if not top.endswith(".dist-info")]
        folder = projects[name]["folder"]
        sources = {
            str(file.relative_to(folder))
            for file in (folder / package).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        packed = {entry for entry in wheel.namelist() if entry.startswith(f"{package}/")}
        assert packed == sources, name
        assert f"{package}/py.typed" in packed, name


def test_metadata_says_what_the_project_says(wheels, projects):
    for name, wheel in wheels.items():
        metadata = _metadata(wheel)
        project = projects[name]["project"]
        assert metadata["Version"] == "0.1.0"
        assert metadata["Requires-Python"] == ">=3.11"
        assert metadata["License-Expression"] == "Apache-2.0"
        plain = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
        assert {str(Requirement(r)) for r in plain} == {
            str(Requirement(d)) for d in project["dependencies"]
        }, name


def test_every_wheel_carries_the_licence(wheels, root):
    for name, wheel in wheels.items():
        [path] = [n for n in wheel.namelist() if n.endswith(".dist-info/licenses/LICENSE")]
        assert wheel.read(path) == (root / "LICENSE").read_bytes(), name


def test_the_demo_wheel_carries_the_model(wheels):
    assert "ninfer_demo_model/data/demo.ninfer" in wheels["ninfer-demo-model"].namelist()


def test_entry_points(wheels):
    for name, wheel in wheels.items():
        [path] = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
        text = wheel.read(path).decode()
        assert "[ninfer]" in text, name
        assert ("ninfer = ninfer_core.cli:main" in text) == (name == "ninfer-core")


def test_sizes(dist):
    assert {
        p.name: p.stat().st_size for p in dist.iterdir() if p.stat().st_size > MAX_WHEEL_BYTES
    } == {}


@pytest.fixture(scope="module")
def third_party(wheels, tmp_path_factory):
    """Empty wheels in place of everything that other projects provide, at the lowest version."""
    folder = tmp_path_factory.mktemp("third_party")
    lines = {r for wheel in wheels.values() for r in _metadata(wheel).get_all("Requires-Dist")}
    for requirement in map(Requirement, lines):
        if not requirement.name.startswith("ninfer-"):
            _write_empty_wheel(folder, requirement)
    return folder


def _write_empty_wheel(folder, requirement):
    bounds = [s.version for s in requirement.specifier if s.operator == ">="]
    name, version = re.sub(r"[-_.]+", "_", requirement.name).lower(), bounds[0]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        head = f"Metadata-Version: 2.1\nName: {requirement.name}\nVersion: {version}\n"
        wheel.writestr(f"{info}/METADATA", head)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_pip_resolves_the_two_names_from_wheels_alone(dist, third_party, tmp_path):
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--ignore-installed",
        "--quiet", "--disable-pip-version-check", "--report", str(tmp_path / "report.json"),
        "--find-links", str(dist), "--find-links", str(third_party),
        "ninfer-core", "ninfer-qwen3_5",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    names = {item["metadata"]["name"].lower().replace("_", "-") for item in report["install"]}
    ours = {name for name in names if name.startswith("ninfer-")}
    assert ours == {
        "ninfer-core",
        "ninfer-demo-model",
        "ninfer-gateway-cli",
        "ninfer-gateway-http",
        "ninfer-grammar-xgrammar",
        "ninfer-ops-triton",
        "ninfer-qwen3-5",
        "ninfer-spec-mtp",
    }
    assert {"torch", "triton", "cupy-cuda13x", "xgrammar", "fastapi", "tokenizers"} <= names


@pytest.mark.parametrize("extra", ["dflash", "vision"])
def test_extras_resolve(dist, third_party, extra, tmp_path):
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--ignore-installed",
        "--quiet", "--disable-pip-version-check", "--report", str(tmp_path / "report.json"),
        "--find-links", str(dist), "--find-links", str(third_party), f"ninfer-qwen3_5[{extra}]",
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=300, check=True)
    report = json.loads((tmp_path / "report.json").read_text())
    names = {item["metadata"]["name"] for item in report["install"]}
    assert {"dflash": "ninfer-spec-dflash", "vision": "ninfer-vision"}[extra] in names
