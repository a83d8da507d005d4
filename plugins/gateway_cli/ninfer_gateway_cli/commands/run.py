"""`ninfer run`: answer one prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_core.console import (
    DebugOption,
    EngineGroup,
    Interrupt,
    ModelArgument,
    leave,
    open_engine,
    reported,
    say,
    start_facts,
    with_groups,
)
from ninfer_core.contract.engine import EngineLike
from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.errors import NinferError, UsageError
from ninfer_gateway_cli.forms import FormGroup
from ninfer_gateway_cli.generation import follow
from ninfer_gateway_cli.options import FLAGS, AnswerGroup, Draws, SamplingGroup
from ninfer_gateway_cli.prompts import STDIN, read_prompt
from ninfer_gateway_cli.report import VerboseOption, timing_line
from ninfer_gateway_cli.sinks import JsonSink, RawSink, TextSink, logprob_rows

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGroup:
    """What is asked of which model."""

    model: ModelArgument = None
    stdin: Annotated[
        str | None, typer.Argument(metavar="-", help="Read the prompt from stdin.")
    ] = None
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The user's message.")] = None
    messages: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON list of messages; - is stdin.")
    ] = None
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message before all others.")
    ] = None
    tools: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON list of tools in OpenAI's form.")
    ] = None

    def place(self) -> tuple[str | None, bool]:
        """MODEL, and whether a lone `-` asks for stdin. Raises UsageError."""
        if self.stdin not in (None, STDIN):
            raise UsageError(f"unexpected argument {self.stdin!r}", hint="put text after --prompt")
        if self.model == STDIN:
            return None, True
        return self.model, self.stdin == STDIN


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGroup:
    """What is printed."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False
    raw_output: Annotated[
        bool, typer.Option("--raw-output", help="Print every token as it is, special ones too.")
    ] = False
    print_token_ids: Annotated[
        bool, typer.Option("--print-token-ids", help="Give the generated token ids, too.")
    ] = False
    logprobs: Annotated[
        int | None,
        typer.Option(min=0, metavar="K", help="With --json: log-probabilities, K alternatives."),
    ] = None
    verbose: VerboseOption = False
    debug: DebugOption = False

    def check(self) -> None:
        """Raises UsageError."""
        if self.logprobs is not None and not self.as_json:
            raise UsageError("--logprobs needs --json", hint="add --json")


@app.command(epilog="--plugin NAME and --no-plugin NAME hold for every command.")
@with_groups
def run(
    ctx: typer.Context,
    asked: InputGroup,
    answer: AnswerGroup,
    form: FormGroup,
    sampling: SamplingGroup,
    output: OutputGroup,
    engine: EngineGroup,
) -> None:
    """Answer one prompt: the text to stdout, thinking and a report to stderr.

    Exit code 0 when answered, 1 when it failed, 2 for wrong options or input, 130 after Ctrl-C.
    """
    with reported(debug=output.debug, as_json=output.as_json, flags=FLAGS):
        output.check()
        model, stdin = asked.place()
        prompt = read_prompt(
            prompt=asked.prompt,
            messages=asked.messages,
            stdin=stdin,
            system=asked.system,
            tools=asked.tools,
            chat=answer.chat_options(),
        )
        prompt = form.on(prompt)
        draws = Draws(sampling)
        options = answer.to_options(draws.checked(), output.logprobs)
        start = replace(engine.to_options(ctx.obj), schema_instruction=form.schema_instruction)
        with Interrupt() as interrupt, open_engine(ctx.obj, model, start, interrupt) as opened:
            options = replace(options, sampling=draws.on(opened.load_summary()))
            _answer(opened, prompt, options, output, interrupt)


def _answer(
    engine: EngineLike,
    prompt: PromptInput,
    options: GenerationOptions,
    output: OutputGroup,
    interrupt: Interrupt,
) -> None:
    sink = _sink(engine, options, output)
    handle = engine.submit(prompt, options)
    try:
        result = follow(handle, sink, interrupt)
    except NinferError:
        sink.fail()
        raise
    finally:
        handle.close()
    sink.end(result)
    if result is not None:
        _report(result, options, output)
    if interrupt.requested:
        leave()


def _sink(
    engine: EngineLike, options: GenerationOptions, output: OutputGroup
) -> TextSink | RawSink | JsonSink:
    if output.as_json:
        summary = engine.load_summary()
        facts: dict[str, Any] = {"model": summary.name, "seed": options.sampling.seed}
        if start := start_facts(summary):
            facts["start"] = start
        return JsonSink(facts, lambda result: _extras(engine, result, output))
    return RawSink(engine.token_bytes) if output.raw_output else TextSink()


def _extras(engine: EngineLike, result: GenerationResult, output: OutputGroup) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if output.raw_output:
        extras["raw"] = engine.detokenize(result.token_ids)
    if output.print_token_ids:
        extras["token_ids"] = result.token_ids
    if output.logprobs is not None:
        extras["logprobs"] = logprob_rows(result.logprobs, engine.token_bytes)
    return extras


def _report(result: GenerationResult, options: GenerationOptions, output: OutputGroup) -> None:
    for warning in result.warnings:
        say("warning", warning)
    if output.print_token_ids and not output.as_json:
        say("token ids", " ".join(map(str, result.token_ids)))
    seed = "" if options.sampling.greedy else f" · seed {options.sampling.seed}"
    say("done", f"{timing_line(result, verbose=output.verbose)}{seed}")
