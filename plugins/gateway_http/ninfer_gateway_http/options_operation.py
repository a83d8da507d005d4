"""The options of `ninfer serve` that say who may call, from where, how long, and what is logged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from ninfer_core.errors import NinferError
from ninfer_gateway_http.log_format import LogFormat
from ninfer_gateway_http.settings import ServerSettings


class BadKeys(NinferError):
    """The API keys that were given are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessGroup:
    """Who may call."""

    api_key: Annotated[
        list[str],
        typer.Option(
            metavar="KEY",
            envvar="NINFER_API_KEYS",
            show_default=False,
            help="Key that callers must send; may be repeated. Only /health stays open.",
        ),
    ] = field(default_factory=list)
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with further keys, one a line; # begins a comment."
        ),
    ] = None
    cors_origin: Annotated[
        list[str],
        typer.Option(
            metavar="ORIGIN",
            show_default=False,
            help="Origin whose pages may call (https://a.example, or *); may be repeated.",
        ),
    ] = field(default_factory=list)
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate chain (PEM); serves https.")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM).")
    ] = None
    uds: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Listen on this Unix socket instead.")
    ] = None

    def keys(self) -> tuple[str, ...]:
        """All keys. Raises BadKeys for an empty one, or a file without any: a server that was meant
        to be closed must not be open."""
        keys = [key.strip() for key in self.api_key]
        if self.api_key_file is not None:
            found = _keys_in(self.api_key_file)
            if not found:
                raise BadKeys(f"--api-key-file: {self.api_key_file} has no key", hint="add a line")
            keys += found
        if "" in keys:
            raise BadKeys("--api-key: a key is empty", hint="leave the option out to ask for none")
        return tuple(keys)

    def apply(self, settings: ServerSettings) -> ServerSettings:
        return replace(settings, api_keys=self.keys(), cors_origins=tuple(self.cors_origin))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationGroup:
    """How long things may take, and what is logged."""

    request_timeout: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="S", help="Longest time of a request, queue included."),
    ] = None
    receive_timeout: Annotated[
        float,
        typer.Option(min=0.1, metavar="S", help="Time for a head, and then a body, to arrive."),
    ] = 60.0
    stall_timeout: Annotated[
        float,
        typer.Option(min=0.1, metavar="S", help="How long a peer may leave its reply unread."),
    ] = 30.0
    log_format: Annotated[
        LogFormat, typer.Option(help="Lines for people, or one JSON object a line.")
    ] = "text"
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Log the bodies of requests, too.")
    ] = False

    def apply(self, settings: ServerSettings) -> ServerSettings:
        return replace(
            settings,
            request_timeout=self.request_timeout,
            receive_timeout=self.receive_timeout,
            stall_timeout=self.stall_timeout,
            log_prompts=self.log_prompts,
        )


def _keys_in(path: Path) -> list[str]:
    """Raises BadKeys when the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeys(f"--api-key-file: cannot read {path}: {error}") from None
    keys = (line.partition("#")[0].strip() for line in lines)
    return [key for key in keys if key]
