"""A small tokenizer of the family's kind, a template of its shape, an artifact that holds both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from ninfer_core.contract.events import Channel, Delta
from ninfer_core.contract.frontend import Frontend, OutputPreview, OutputSession, OutputSpan
from ninfer_core.contract.instance import FrontendRequest
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput
from ninfer_qwen3_5.frontend import open_frontend

HERE = Path(__file__).parent
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_pad|>".split()
KEPT = "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think>".split()
CORPUS = (
    "The quick brown fox jumps over the lazy dog. 12 + 30 = 42\n\n",
    "Let me think about what the user wants.\n<function=search>\n<parameter=query>\nweather\n",
    '</parameter>\n</function>\nsystem user assistant {"name": "value"}, [1, 2, 3]\n',
    "日本語のテキスト。Größe und Maß, façade 😀🎉 हिन्दी\n",
)


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in KEPT])
    return tokenizer


@dataclass
class FakeArtifact:
    """What the frontend uses of an artifact."""

    resources: dict[str, bytes]
    config: dict[str, Any] = field(default_factory=dict)

    def component(self, name: str) -> SimpleNamespace:
        assert name == "text"
        return SimpleNamespace(config=self.config)

    def resource(self, component: str, name: str) -> bytes | None:
        assert component == "text"
        return self.resources.get(name)


@pytest.fixture(scope="session")
def raw_tokenizer() -> Tokenizer:
    """The tokenizer as the `tokenizers` library runs it."""
    return build_tokenizer()


@pytest.fixture(scope="session")
def template_source() -> str:
    return (HERE / "qwen_shaped.jinja").read_text("utf-8")


@pytest.fixture(scope="session")
def tokenizer_config() -> dict[str, Any]:
    return {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}, "bos_token": None}


@pytest.fixture(scope="session")
def artifact_of() -> type[FakeArtifact]:
    """Make an artifact out of resources by name."""
    return FakeArtifact


@pytest.fixture
def artifact(
    raw_tokenizer: Tokenizer, template_source: str, tokenizer_config: dict[str, Any]
) -> FakeArtifact:
    return FakeArtifact(
        {
            "tokenizer.json": raw_tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps(tokenizer_config).encode(),
            "chat_template.jinja": template_source.encode(),
        }
    )


@pytest.fixture
def opened() -> Callable[..., Frontend]:
    """Open a frontend over an artifact."""

    def opener(artifact: Any, *, max_context: int = 4096, **request: Any) -> Frontend:
        return open_frontend(FrontendRequest(artifact=artifact, max_context=max_context, **request))

    return opener


@pytest.fixture(scope="session")
def frontend(
    raw_tokenizer: Tokenizer, template_source: str, tokenizer_config: dict[str, Any]
) -> Frontend:
    resources = {
        "tokenizer.json": raw_tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(tokenizer_config).encode(),
        "chat_template.jinja": template_source.encode(),
    }
    artifact: Any = FakeArtifact(resources)
    return open_frontend(FrontendRequest(artifact=artifact, max_context=1 << 20))


@dataclass
class Run:
    """A whole output: its deltas and how it ended."""

    session: OutputSession
    deltas: list[Delta] = field(default_factory=list)
    previews: list[OutputPreview] = field(default_factory=list)

    @property
    def last(self) -> OutputPreview:
        return self.previews[-1]

    def text(self, channel: Channel = Channel.CONTENT) -> str:
        return "".join(d.text for d in self.deltas if d.channel is channel)

    @property
    def reasoning(self) -> str:
        return self.text(Channel.REASONING)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """(name, joined argument fragments) of each call, also of a cut one."""
        calls: list[list[str]] = []
        for tool in (d.tool for d in self.deltas if d.tool is not None):
            if tool.name is not None:
                assert tool.index == len(calls)
                calls.append([tool.name, ""])
            calls[tool.index][1] += tool.arguments
        return [(name, arguments) for name, arguments in calls]

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]


@pytest.fixture(scope="session")
def play(frontend: Frontend) -> Callable[..., Run]:
    """Run token ids, or text that is tokenised, through a session in the given chunks."""

    def player(
        output: str | Sequence[int],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        chunks: Iterable[int] | None = None,
        limit: Any = None,
        thinking: bool = False,
        prompt: PromptInput | None = None,
        options: GenerationOptions | None = None,
        **option: Any,
    ) -> Run:
        tokens = frontend.tokenize(output) if isinstance(output, str) else list(output)
        prepared = frontend.prepare(prompt or chat_prompt(thinking, tools))
        session = frontend.open_output(prepared, options or GenerationOptions(**option), None)
        run = Run(session)
        sizes = iter(chunks) if chunks is not None else iter(())
        place = 0
        while place < len(tokens) or not run.previews:
            size = next(sizes, 1) if chunks is not None else max(1, len(tokens))
            span = tuple(tokens[place : place + size])
            place += len(span)
            last = place >= len(tokens)
            preview = session.preview(OutputSpan(token_ids=span, limit=limit if last else None))
            session.commit(preview)
            run.previews.append(preview)
            run.deltas += preview.deltas
            if preview.finish is not None:
                break
        return run

    return player


def chat_prompt(thinking: bool, tools: Sequence[Mapping[str, Any]] = ()) -> PromptInput:
    return PromptInput(
        messages=[{"role": "user", "content": "hi"}],
        tools=tools,
        chat=ChatOptions(thinking=thinking),
    )


@pytest.fixture(scope="session")
def tools() -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": "search",
                "description": "Look something up.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "query": {"type": "string"},
                        "count": {"type": "integer"},
                        "ratio": {"type": "number"},
                        "exact": {"type": "boolean"},
                        "filter": {"type": "object"},
                        "tags": {"type": "array"},
                        "note": {"type": ["string", "null"]},
                        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                    },
                },
            },
        },
        {"type": "function", "function": {"name": "stop_all"}},
    ]
