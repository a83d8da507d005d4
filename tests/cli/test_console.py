"""The parts that commands share, used as a plug-in author would."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from ninfer_core.console import (
    EngineGroup,
    Interrupt,
    ModelArgument,
    open_engine,
    reported,
    with_groups,
)
from ninfer_core.contract.requests import PromptInput
from ninfer_core.errors import NinferError


def test_a_command_of_another_author_opens_an_engine(ninfer, host):
    app = typer.Typer()

    @app.command()
    @with_groups
    def count(ctx: typer.Context, engine: EngineGroup, model: ModelArgument = None) -> None:
        start = engine.to_options(ctx.obj)
        with (
            reported(),
            Interrupt() as interrupt,
            open_engine(ctx.obj, model, start, interrupt) as opened,
        ):
            typer.echo(opened.count_tokens(PromptInput(text="hello")))

    done = CliRunner().invoke(app, ["demo", "--max-context", "99"], obj=host)
    assert (done.exit_code, done.stdout) == (0, "5\n")
    assert ninfer.opened[0][1].max_context == 99
    assert ninfer.engine.closed


@dataclass(frozen=True)
class Colours:
    first: Annotated[str, typer.Option(help="Needed.")]
    second: Annotated[int, typer.Option(help="Optional.")] = 7
    more: Annotated[list[str], typer.Option(help="Repeatable.")] = field(default_factory=list)


def test_groups_become_options_with_their_defaults():
    app, seen = typer.Typer(), []

    @app.command()
    @with_groups
    def paint(colours: Colours, wet: bool = False) -> None:
        """Paint."""
        seen.append((colours, wet))

    run = CliRunner().invoke
    assert run(app, ["--first", "red", "--more", "a", "--more", "b", "--wet"]).exit_code == 0
    assert run(app, ["--first", "blue", "--second", "8"]).exit_code == 0
    assert run(app, []).exit_code == 2
    assert seen == [(Colours("red", 7, ["a", "b"]), True), (Colours("blue", 8, []), False)]
    assert "Repeatable." in run(app, ["--help"]).output


class Odd(NinferError):
    exit_code = 9


def test_an_error_ends_with_its_own_exit_code(capsys):
    with pytest.raises(typer.Exit) as ended, reported():
        raise Odd("it is\nodd", hint="even it")
    assert ended.value.exit_code == 9
    assert capsys.readouterr().err == "ninfer: error: it is odd (even it)\n"


def test_loading_hands_over_values_and_errors():
    with Interrupt() as interrupt:
        assert interrupt.wait_for(lambda: 41 + 1) == 42
        with pytest.raises(Odd):
            interrupt.wait_for(lambda: (_ for _ in ()).throw(Odd("no")))
