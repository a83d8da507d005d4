"""An instance that is closed leaves nothing behind."""

from __future__ import annotations

from ninfer_qwen3_5.build import Qwen35Instance


class Part:
    """Counts what closes it."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_its_text_side_ends_with_it():
    frontend, program = Part(), Part()
    Qwen35Instance("demo", frontend, program, {}).close()
    assert (frontend.closed, program.closed) == (1, 1)
