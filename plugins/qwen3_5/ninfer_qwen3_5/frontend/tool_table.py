"""The tools that a request declares, as the output parser needs them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_core.contract.requests import PromptInput
from ninfer_qwen3_5.frontend.tool_types import parameter_types
from ninfer_qwen3_5.frontend.tool_values import STRING


class ToolTable:
    """Declared names with the types of their parameters, and the ids of the calls to come.

    ``tag`` makes call ids differ between requests; within one request they follow the index, so
    that interpreting the same output twice gives the same ids.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], *, parallel: bool = True, tag: str | None = None
    ) -> None:
        functions = [tool.get("function", tool) for tool in tools]
        self._types = {
            str(function["name"]): parameter_types(function.get("parameters"))
            for function in functions
        }
        self._tag = tag or secrets.token_hex(8)
        self.parallel = parallel

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def may_become(self, beginning: str) -> bool:
        """Whether some declared name begins like this."""
        return any(name.startswith(beginning) for name in self._types)

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """JSON types of a parameter; one that is not declared is taken as text."""
        return self._types[name].get(parameter, STRING)

    def call_id(self, index: int) -> str:
        return f"call_{self._tag}{index:04d}"


def open_tool_table(prompt: PromptInput) -> ToolTable | None:
    """The table if calls are to be parsed: tools are declared and not forbidden."""
    if not prompt.tools or prompt.tool_choice.mode == "none":
        return None
    return ToolTable(prompt.tools, parallel=prompt.tool_choice.parallel)
