"""The text side of a Qwen3.5 model (contract: ``Frontend``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_core.contract.errors import InvalidRequest, Unsupported
from ninfer_core.contract.frontend import (
    CompiledGrammar,
    GrammarSource,
    OutputSession,
    PreparedPrompt,
)
from ninfer_core.contract.grammar import GrammarCompiler
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_qwen3_5.frontend.budget import BudgetFactory
from ninfer_qwen3_5.frontend.channels import ChannelRules, Mark
from ninfer_qwen3_5.frontend.constraint import may_constrain
from ninfer_qwen3_5.frontend.output_state import SessionRules
from ninfer_qwen3_5.frontend.prompt import PromptPreparer, refuse_half_characters
from ninfer_qwen3_5.frontend.session import Session
from ninfer_qwen3_5.frontend.stops import StopStrings
from ninfer_qwen3_5.frontend.template import ChatTemplate
from ninfer_qwen3_5.frontend.tokenizer import TextTokenizer
from ninfer_qwen3_5.frontend.tool_table import open_tool_table
from ninfer_qwen3_5.frontend.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendParts:
    """What `open_frontend` has read and checked."""

    tokenizer: TextTokenizer
    vocabulary: Vocabulary
    template: ChatTemplate
    preparer: PromptPreparer
    budgets: BudgetFactory
    sampling: SamplingParams
    compiler: GrammarCompiler | None


class Qwen35Frontend:
    """Tokenizer, template and output channels. Thread safe.

    Messages are answered in channels: reasoning, content, tool calls. The output of text and
    token prompts is raw: all of it is content, thought and call marks included. The spelling of
    special tokens never appears in output.
    """

    def __init__(self, parts: FrontendParts) -> None:
        self._parts = parts

    @property
    def default_sampling(self) -> SamplingParams:
        return self._parts.sampling

    @property
    def vocab_size(self) -> int:
        return self._parts.tokenizer.vocab_size

    def render(self, prompt: PromptInput) -> str:
        return self._parts.preparer.render(prompt)

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        return self._parts.preparer.prepare(prompt)

    def compile(self, source: GrammarSource) -> CompiledGrammar:
        return self._compiler().compile(source)

    def grammar_loader(self) -> Callable[[], None] | None:
        compiler = self._parts.compiler
        return None if compiler is None else compiler.load

    def close(self) -> None:
        if self._parts.compiler is not None:
            self._parts.compiler.close()

    def open_output(
        self,
        prepared: PreparedPrompt,
        options: GenerationOptions,
        compiled: CompiledGrammar | None,
    ) -> OutputSession:
        """Raises InvalidRequest for a token id outside the vocabulary."""
        self._check_ids(options.stop_token_ids, "stop_token_ids")
        self._check_ids(options.sampling.logit_bias, "logit_bias")
        matcher = None
        if compiled is not None and may_constrain(prepared.request, options):
            matcher = self._compiler().open(compiled)
        rules = self._rules(prepared, options, constrained=matcher is not None)
        return Session(rules, prepared.starts_in, matcher)

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Raises InvalidPrompt for text with half a character in it."""
        refuse_half_characters(text, "text")
        tokenizer = self._parts.tokenizer
        return tokenizer.encode(text) if special else tokenizer.encode_plain(text)

    def detokenize(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        self._check_ids(token_ids, "token_ids")
        return self._parts.tokenizer.decode(token_ids, skip_special=skip_special)

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        self._check_ids(token_ids, "token_ids")
        return [self._parts.tokenizer.bytes_of(token) for token in token_ids]

    def describe(self) -> Mapping[str, Any]:
        template = self._parts.template
        return {
            "vocab_size": self.vocab_size,
            "stop_token_ids": sorted(self._parts.vocabulary.eos),
            "templates": sorted(template.variables),
            "template_variables": sorted(frozenset().union(*template.variables.values())),
            "template_digest": template.digest,
            "constraints": self._parts.compiler is not None,
        }

    def _compiler(self) -> GrammarCompiler:
        if self._parts.compiler is None:
            raise Unsupported(
                "this engine was started without a grammar backend",
                param="response_format",
                hint="start with a grammar backend",
            )
        return self._parts.compiler

    def _rules(
        self, prepared: PreparedPrompt, options: GenerationOptions, *, constrained: bool
    ) -> SessionRules:
        parts, chat = self._parts, prepared.request.messages is not None
        tools = open_tool_table(prepared.request) if chat else None
        return SessionRules(
            tokenizer=parts.tokenizer,
            marks=_marks(parts.vocabulary, tools is not None) if chat else {},
            skipped=parts.tokenizer.special_ids,
            eos=frozenset() if options.ignore_eos else parts.vocabulary.eos,
            stop_ids=frozenset(options.stop_token_ids),
            min_tokens=options.min_tokens,
            channels=ChannelRules(
                tools,
                StopStrings(options.stop),
                loose_calls=not constrained,
                exact_layout=constrained and prepared.request.response_format.kind != "text",
            ),
            budget=parts.budgets.budget(options.thinking_budget),
        )

    def _check_ids(self, ids: Sequence[int] | Mapping[int, float], field: str) -> None:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise InvalidRequest(
                    f"{field} names token {token}; ids run from 0 to {self.vocab_size - 1}",
                    param=field,
                )


def _marks(vocabulary: Vocabulary, calls: bool) -> dict[int, Mark]:
    marks = {
        vocabulary.think_open: Mark.THINK_OPEN,
        vocabulary.think_close: Mark.THINK_CLOSE,
    }
    if calls:
        marks[vocabulary.call_open] = Mark.CALL_OPEN
        marks[vocabulary.call_close] = Mark.CALL_CLOSE
    return marks
