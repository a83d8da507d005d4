"""A scripted engine whose model writes given raw text, read by the demo model's own frontend."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ninfer_core.artifact.reader import open_artifact
from ninfer_core.contract.events import Delta, FinishReason
from ninfer_core.contract.frontend import OutputSpan
from ninfer_core.contract.instance import FrontendRequest
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.testing.scripted_engine import ScriptedEngine
from ninfer_core.testing.scripted_reply import Reply
from ninfer_demo_model.source import resolve
from ninfer_qwen3_5.frontend import open_frontend

END = "<|im_end|>"


class Typist(ScriptedEngine):
    """Types ``raw``, text or token ids, pausing ``interval`` seconds before each of its deltas.

    Tokens are those of the demo model, channels, calls, stops and budgets are its frontend's work.
    """

    def __init__(self) -> None:
        super().__init__(self._type)
        with open_artifact(resolve()) as artifact:
            request = FrontendRequest(artifact=artifact, max_context=4096)
            self.frontend = open_frontend(request)
        self.raw: str | list[int] = ""
        self.interval = 0.0
        self.limit: int | None = None

    def submit(self, prompt, options):
        """The limit counts the model's tokens, not the bytes that a scripted engine counts."""
        self.limit = options.max_new_tokens
        return super().submit(prompt, dataclasses.replace(options, max_new_tokens=None))

    def prepare(self, prompt):
        return self.frontend.prepare(prompt)

    def token_bytes(self, token_ids):
        return self.frontend.token_bytes(token_ids)

    def load_summary(self):
        return dataclasses.replace(super().load_summary(), vocab_size=self.frontend.vocab_size)

    def _type(self, prompt: PromptInput, options: GenerationOptions) -> Reply:
        session = self.frontend.open_output(self.frontend.prepare(prompt), options, None)
        deltas: list[Delta] = []
        finish = FinishReason.STOP_TOKEN
        for ids, control, limit in self._spans():
            preview = session.preview(OutputSpan(token_ids=ids, control=control, limit=limit))
            session.commit(preview)
            deltas += preview.deltas
            self.forced = preview.forced
            if preview.finish is not None:
                finish = preview.finish
                break
        return Reply(deltas=tuple(deltas), finish=finish, interval=self.interval)

    def _spans(self) -> Iterator[tuple[tuple[int, ...], bool, FinishReason | None]]:
        """One token at a time, forced ones before the model's own, and the limit with the last."""
        self.forced: tuple[int, ...] = ()
        tokenize, raw = self.frontend.tokenize, self.raw
        own = iter([*(tokenize(raw) if isinstance(raw, str) else raw), *tokenize(END)])
        produced = 0
        while True:
            forced, self.forced = self.forced, ()
            token = forced[0] if forced else next(own)
            produced += 1
            reached = FinishReason.OUTPUT_LIMIT if produced == self.limit else None
            yield (token,), bool(forced), reached
            self.forced = self.forced or forced[1:]
