"""Discovery agrees with ``importlib.metadata``, the independent reader of the same directories."""

from __future__ import annotations

from importlib.metadata import entry_points

from ninfer_core.plugins.discovery import discover
from ninfer_core.plugins.selection import normalise


def test_finds_what_importlib_metadata_finds():
    theirs = {
        (normalise(ep.name), ep.value, ep.dist.name, ep.dist.version, tuple(ep.dist.requires or ()))
        for ep in entry_points(group="ninfer")
    }
    ours = {(c.name, c.module, c.dist, c.version, c.requires) for c in discover()}
    assert "builtin" in {c[0] for c in ours}
    assert ours == theirs


def test_reads_sections_comments_and_folded_headers(tmp_path):
    info = tmp_path / "x-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(
        "[console_scripts]\nx = x:main\n\n[ninfer]\n# note = not.this\nA-b = x.plugin\n"
        "\n[other]\nc=d\n"
    )
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: x\nVersion: 1\nKeywords: a,\n  b\nSummary: s: t\n"
        "\nName: not\n"
    )
    (tmp_path / "notes.txt").write_text("")
    [found] = discover([str(tmp_path), str(tmp_path / "missing")])
    assert (found.name, found.module, found.dist) == ("a_b", "x.plugin", "x")
    assert found.keywords == ("a", "b")
