"""`ninfer serve`: an engine behind HTTP."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable
from typing import Annotated, Literal

import typer

from ninfer_core.console import (
    DebugOption,
    EngineGroup,
    Interrupt,
    ModelArgument,
    open_engine,
    open_remote_engine,
    reported,
    say,
    with_groups,
)
from ninfer_core.contract.engine import EngineLike
from ninfer_gateway_http.log_format import log_to_stderr
from ninfer_gateway_http.options import FLAGS, ServerGroup
from ninfer_gateway_http.options_operation import AccessGroup, OperationGroup
from ninfer_gateway_http.start_report import start_report

serve_app = typer.Typer(add_completion=False, rich_markup_mode=None)
Level = Literal["debug", "info", "warning", "error"]


@serve_app.command(epilog="--plugin NAME and --no-plugin NAME hold for every command.")
@with_groups
def serve(
    ctx: typer.Context,
    server: ServerGroup,
    access: AccessGroup,
    operation: OperationGroup,
    engine: EngineGroup,
    model: ModelArgument = None,
    log_level: Annotated[Level, typer.Option(help="How much is logged to stderr.")] = "info",
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Run the engine in this process, to debug it.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Serve a model over HTTP with OpenAI's and Anthropic's APIs.

    SIGTERM or Ctrl-C refuses new requests and lets the running ones finish; a second one ends now.
    """
    with reported(debug=debug, flags=FLAGS):
        from ninfer_gateway_http.app import create_app
        from ninfer_gateway_http.server import Server
        from ninfer_gateway_http.sockets import listen, listen_unix, tls_of, url_of

        log_to_stderr(log_level, operation.log_format)
        settings = operation.apply(access.apply(server.settings()))
        tls = tls_of(access.tls_cert, access.tls_key)
        options = server.widen(engine.to_options(ctx.obj))
        # Before loading: a taken port should not cost the time that a model takes.
        with listen_unix(access.uds) if access.uds else listen(server.host, server.port) as sock:
            opener = open_engine if in_process else open_remote_engine
            with Interrupt() as interrupt:
                opened: EngineLike = opener(ctx.obj, model, options, interrupt)
            with contextlib.closing(opened):
                app = create_app(opened, settings)
                summary, url = opened.load_summary(), url_of(sock, tls)
                # What is loaded by now stays: looking through it for garbage, again and again,
                # holds up every request.
                gc.collect()
                gc.freeze()
                Server(
                    app, lambda: _say_all(start_report(summary, settings, options, url)), tls
                ).serve_on(sock)
        say("note", "stopped")


def _say_all(lines: Iterable[tuple[str, str]]) -> None:
    for kind, text in lines:
        say(kind, text)
