"""The chat's terminal: lines in, answers out, and the commands that start with a slash."""

from __future__ import annotations

import sys
from typing import Final

from ninfer_core.console import Interrupt, say, spelled
from ninfer_core.errors import NinferError
from ninfer_gateway_cli.conversation import Conversation
from ninfer_gateway_cli.options import FLAGS
from ninfer_gateway_cli.report import timing_line
from ninfer_gateway_cli.sinks import TextSink

_HELP: Final = """\
/reset          forget the conversation
/system TEXT    set the system message; without TEXT remove it
/exit           end (also /quit, Ctrl-D)"""
_PROMPT: Final = "> "


class Terminal:
    """Reads turns until the input ends; without a terminal it shows no prompt, and reports on
    answers only if ``verbose``."""

    def __init__(self, conversation: Conversation, *, verbose: bool = False) -> None:
        self._conversation = conversation
        self._interactive = sys.stdin.isatty()
        self._verbose = verbose
        self._failed = False

    def talk(self) -> bool:
        """Run the chat; False when a request of a scripted chat failed."""
        self._greet()
        while (line := self._read()) is not None:
            text = line.strip()
            if text in ("/exit", "/quit"):
                break
            if text.startswith("/"):
                self._command(*text.split(maxsplit=1))
            elif text:
                self._turn(text)
        return self._interactive or not self._failed

    def _greet(self) -> None:
        if not self._interactive:
            return
        import readline  # noqa: F401  line editing and history for input()

        from rich.console import Console

        model = self._conversation.engine.load_summary()
        place = f"{', '.join(model.devices)}, {model.max_context} tokens of context"
        Console(stderr=True).print(f"[bold]{model.name}[/bold] on {place}. /help lists commands.")

    def _read(self) -> str | None:
        if not self._interactive:
            return sys.stdin.readline() or None
        while True:
            try:
                return input(self._prompt())
            except EOFError:
                sys.stderr.write("\n")
                return None
            except KeyboardInterrupt:
                sys.stderr.write("\n(Ctrl-D or /exit ends the chat)\n")

    def _prompt(self) -> str:
        if sys.stdout.isatty():
            return _PROMPT
        sys.stderr.write(_PROMPT)
        sys.stderr.flush()
        return ""

    def _command(self, name: str, argument: str = "") -> None:
        match name:
            case "/reset":
                self._conversation.reset()
            case "/system":
                self._conversation.system = argument or None
            case "/help":
                sys.stderr.write(f"{_HELP}\n")
            case _:
                say("error", f"unknown command {name}; /help lists them")
                self._failed = True

    def _turn(self, text: str) -> None:
        sink = TextSink()
        try:
            with Interrupt() as interrupt:
                result = self._conversation.ask(text, sink, interrupt)
        except NinferError as error:
            sink.fail()
            say("error", spelled(str(error), FLAGS))
            self._failed = True
            return
        sink.end(result)
        if result is None:
            say("warning", "the answer could not be stopped in time and was dropped")
            return
        for warning in result.warnings:
            say("warning", warning)
        if self._interactive or self._verbose:
            say("done", timing_line(result, verbose=self._verbose))
