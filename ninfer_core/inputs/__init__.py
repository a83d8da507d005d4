"""From JSON, as a gateway or a file holds it, to a `PromptInput`."""

from ninfer_core.inputs.messages import parse_messages
from ninfer_core.inputs.prompt import PROMPT_FIELDS, parse_prompt
from ninfer_core.inputs.response_format import parse_response_format
from ninfer_core.inputs.tools import parse_tool_choice, parse_tools

__all__ = [
    "PROMPT_FIELDS",
    "parse_messages",
    "parse_prompt",
    "parse_response_format",
    "parse_tool_choice",
    "parse_tools",
]
