"""The sandbox that chat templates run in: the dialect of `transformers`, bounded in time and size.

A template is code from a checkpoint. It cannot reach Python (jinja2's immutable sandbox), and a
rendering ends after :class:`RenderLimits` at the latest: every call, attribute look-up and piece of
output asks the clock, and jinja2 itself bounds a range to 100,000, so no loop escapes for long.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_GROWING = frozenset({"*", "**", "%"})
_LARGEST_PRODUCT = 1 << 20
_WIDE_FIELD = re.compile(r"\d{5}|\*")
_deadline: ContextVar[float] = ContextVar("render_deadline", default=float("inf"))


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Seconds and characters that one rendering may take."""

    seconds: float = 10.0
    characters: int = 64 << 20


class RenderLimitExceeded(jinja2.TemplateError):
    """The template ran too long or wrote too much."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The dialect: trimmed blocks, loop controls, ``generation`` tags, plain JSON."""

    intercepted_binops = _GROWING

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _TemplateNamespace

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_clock()
        return super().call(context, function, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_clock()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_clock()
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_growth(operator, left, right)
        return super().call_binop(context, operator, left, right)


def render_bounded(
    template: jinja2.Template, variables: Mapping[str, Any], limits: RenderLimits
) -> str:
    """Render, or raise RenderLimitExceeded (a TemplateError)."""
    pieces: list[str] = []
    written = 0
    with _time_limit(limits.seconds):
        for piece in template.generate(variables):
            _check_clock()
            written += len(piece)
            if written > limits.characters:
                raise RenderLimitExceeded(f"it writes more than {limits.characters} characters")
            pieces.append(piece)
    return "".join(pieces)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def _check_clock() -> None:
    if time.monotonic() > _deadline.get():
        raise RenderLimitExceeded("it runs too long")


def _check_growth(operator: str, left: Any, right: Any) -> None:
    """Refuse the operators that make a huge value out of a small program."""
    if operator == "%":
        grows = isinstance(left, str) and _WIDE_FIELD.search(left) is not None
    elif operator == "**":
        grows = isinstance(right, int) and abs(right) > 64
    else:
        grows = _product_length(left, right) > _LARGEST_PRODUCT
    if grows:
        raise SecurityError(f"a chat template may not build so large a value with {operator!r}")


def _product_length(left: Any, right: Any) -> int:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | bytes | list | tuple) and isinstance(count, int):
            return len(sequence) * count
    return 0


class _GenerationTag(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the attribute is jinja2's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _TemplateNamespace(Namespace):
    """jinja2's namespace without underscore names, which would reach its internals."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a chat template may not store {name!r} on a namespace")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
