"""The documentation of the hooks: complete, and its tutorial works as written."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from ninfer_core.contract.cache import Provenance, SaveOffer, Victim
from ninfer_core.contract.checkpoints import CheckpointAction, CheckpointFacts
from ninfer_core.contract.resources import CheckpointRef, ResourceVector, Shortfall
from ninfer_core.contract.reuse import RestoreKind
from ninfer_core.hookspecs import SEAMS, SPECS, Entry
from ninfer_core.plugins import errors

PARTS = ("Since: ", "Called: ", "Returns: ", "Threading: ", "Example::")


@pytest.fixture(scope="module")
def page(request):
    """The text of docs/plugins.md."""
    return (request.config.rootpath / "docs" / "plugins.md").read_text()


def hooks():
    return [(spec, name) for spec in SPECS for name in vars(spec) if name.startswith("ninfer_")]


def section(page, title):
    """The text under the heading that starts with ``title``."""
    [(_, body)] = re.findall(rf"(?ms)^#+ ({re.escape(title)}[^\n]*)\n(.*?)(?=^#|\Z)", page)
    return body


def test_every_hook_is_documented_with_its_record(page):
    for seam in SEAMS:
        body = section(page, f"`{seam.hook}` → `{seam.record.__name__}`")
        shared = {field.name for field in fields(Entry)}
        for field in fields(seam.record):
            if field.name not in shared:
                assert f"`{field.name}`" in body, f"{seam.hook}: {field.name}"
        assert body.rstrip().endswith("Active." if seam.active else "Passive.")
    documented = set(re.findall(r"(?m)^### `(ninfer_\w+)", page))
    assert documented == {name for _, name in hooks()}


def test_shared_fields_and_errors_are_documented(page):
    for field in fields(Entry):
        assert f"| `{field.name}` |" in section(page, "Records and hooks")
    kinds = [n for n, o in vars(errors).items() if inspect.isclass(o) and n.startswith("Plugin")]
    assert len(kinds) == 8
    for name in kinds:
        assert f"`{name}`" in page


@pytest.mark.parametrize(("spec", "name"), hooks())
def test_specs_explain_themselves(spec, name):
    text = inspect.getdoc(getattr(spec, name))
    for part in PARTS:
        assert part in text, f"{name} lacks {part}"
    example = inspect.cleandoc(text.partition("Example::")[2])
    [function] = ast.parse(example).body
    assert function.name == name


def test_one_seam_for_each_registration_hook():
    assert {seam.hook for seam in SEAMS} == {n for _, n in hooks()} - {"ninfer_add_hookspecs"}


def test_tutorial_works_as_written(page, tmp_path):
    body = page.partition("## A command in five minutes")[2].partition("\n## ")[0]
    files = re.findall(r"`([\w./]+)`:\n\n```\w+\n(.*?)```", body, re.DOTALL)
    assert [name for name, _ in files] == [
        "pyproject.toml",
        "ninfer_hello/plugin.py",
        "ninfer_hello/cli.py",
    ]
    for name, text in [*files, ("ninfer_hello/__init__.py", ""), ("ninfer_hello/py.typed", "")]:
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(text)
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "--target", str(site), str(tmp_path / "src")],
        check=True, timeout=300,
    )  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(site)}
    code = "import sys; from ninfer_core.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "hello", "--name", "Ada"],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert re.fullmatch(r"Hello Ada, from \d+ plug-ins\n", done.stdout)
    kit = [sys.executable, "-m", "pytest", "--pyargs", "ninfer_core.testing.conformance", "-q",
           "-p", "no:cacheprovider", "--ninfer-plugin", "hello"]  # fmt: skip
    ran = subprocess.run(
        kit, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout


def test_the_cache_policy_works_as_written(page):
    [code] = re.findall(r"```python\n(.*?)```", section(page, "Writing a cache policy"), re.DOTALL)
    made: dict[str, type] = {}
    exec(code, made)
    policy = made["OldestFirst"]()
    victims = [victim(order) for order in (5, 3, 4)]
    shortfall = Shortfall("state_slots", 1, 0)
    assert [v.provenance.order for v in policy.victims(shortfall, victims)] == [3, 4, 5]
    offers = [SaveOffer(at, RestoreKind.USER_MESSAGE, ResourceVector(), 100) for at in (163, 164)]
    assert [policy.admit(offer) for offer in offers] == [False, True]
    assert policy.keeps


def victim(order):
    none = ResourceVector()
    facts = CheckpointFacts(
        frontier=64, coverage={}, replicas=frozenset(), recovery_frontier=0, footprint=none
    )
    ref, origin = CheckpointRef(0, order, 1), Provenance(order=order)
    return Victim(ref, facts, CheckpointAction.DELETE, none, provenance=origin)
