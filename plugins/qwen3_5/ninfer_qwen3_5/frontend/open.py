"""Open the text side of an artifact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_core.contract.instance import FrontendRequest
from ninfer_qwen3_5.frontend.budget import GUIDANCE, BudgetFactory
from ninfer_qwen3_5.frontend.errors import ResourceError
from ninfer_qwen3_5.frontend.frontend import FrontendParts, Qwen35Frontend
from ninfer_qwen3_5.frontend.prompt import PromptPreparer
from ninfer_qwen3_5.frontend.resources import Resources, read_resources
from ninfer_qwen3_5.frontend.template import ChatTemplate
from ninfer_qwen3_5.frontend.tokenizer import TextTokenizer
from ninfer_qwen3_5.frontend.vocabulary import read_vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendOptions:
    """``chat_template``: path of a Jinja file instead of the checkpoint's own template.
    ``thinking_guidance``: the sentence that a spent thinking budget ends a thought with."""

    chat_template: str | None = None
    thinking_guidance: str = GUIDANCE

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> FrontendOptions:
        """Raises ResourceError for an option that does not exist or is not text."""
        known = cls.__dataclass_fields__
        given = {name: value for name, value in options.items() if value is not None}
        for name, value in given.items():
            if name not in known:
                raise ResourceError(
                    f"frontend option {name!r} does not exist", hint=f"known: {', '.join(known)}"
                )
            if not isinstance(value, str):
                raise ResourceError(
                    f"frontend option {name!r} must be text, not {value!r}",
                    hint="give a string, or leave it out",
                )
        return cls(**given)


def open_frontend(request: FrontendRequest) -> Qwen35Frontend:
    """Read and check the text resources of the artifact; nothing of its weights.

    Raises ResourceError naming the resource or option that is missing, malformed or contradictory.
    """
    options = FrontendOptions.parse(request.options)
    resources = read_resources(request.artifact, options.chat_template)
    tokenizer = TextTokenizer(
        resources.tokenizer, resources.tokenizer_config.get("added_tokens_decoder")
    )
    _check_vocabulary(tokenizer, resources)
    vocabulary = read_vocabulary(tokenizer, resources)
    template = ChatTemplate(resources.templates, resources.named_tokens())
    compiler = None
    if request.grammar_backend is not None:
        compiler = request.grammar_backend(vocabulary.for_grammars(tokenizer))
    identity = f"{hashlib.sha256(resources.tokenizer).hexdigest()[:16]}:{template.digest}"
    return Qwen35Frontend(
        FrontendParts(
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            template=template,
            preparer=PromptPreparer(
                tokenizer,
                vocabulary,
                template,
                identity,
                request.max_context,
                compiler,
            ),
            budgets=BudgetFactory(tokenizer, options.thinking_guidance),
            sampling=resources.sampling(),
            compiler=compiler,
        )
    )


def _check_vocabulary(tokenizer: TextTokenizer, resources: Resources) -> None:
    config = resources.config
    rows = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if isinstance(rows, int) and tokenizer.vocab_size > rows:
        raise ResourceError(
            f"tokenizer.json has ids up to {tokenizer.vocab_size - 1}, but vocab_size is {rows}",
            hint="take the tokenizer and config.json from one checkpoint",
        )
