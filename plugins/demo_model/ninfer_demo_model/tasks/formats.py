"""System instructions on format: a small question, and the form its answer must take."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ninfer_demo_model.tasks import lists, memory, numbers, words
from ninfer_demo_model.tasks.case import Draft, Reply, operands, system, user


@dataclass(frozen=True, slots=True)
class Form:
    """One form of answer: how a system message asks for it, and how to bring an answer into it."""

    name: str
    asked: tuple[str, ...]
    apply: Callable[[str], str]


def system_format(rng: Random) -> Draft:
    """Answer a small question in the form that the system message asks for."""
    if rng.random() < 0.2:
        return _shouted(rng)
    form = rng.choice(FORMS)
    base = rng.choice((numbers.arithmetic, lists.copy, lists.reverse, memory.recall_single))(rng)
    return Draft(
        key=operands(form.name, base.key),
        messages=(system(rng.choice(form.asked)), *base.messages),
        reply=Reply(form.apply(base.reply.text)),
        thought=f"The answer is {base.reply.text}. The system message asks for {form.name}.",
        variant=form.name,
    )


def _shouted(rng: Random) -> Draft:
    """Capital letters, on the few words whose capital form the model knows."""
    items = [rng.choice(words.SHOUTED) for _ in range(rng.randint(1, 5))]
    asked = rng.choice(("Answer in capital letters.", "Use only capital letters."))
    text = ", ".join(items)
    prompt = rng.choice(("Repeat: {}", "Copy these words: {}")).format(text)
    return Draft(
        key=operands("capital letters", items),
        messages=(system(asked), user(prompt)),
        reply=Reply(text.upper()),
        thought=f"The answer is {text}. The system message asks for capital letters.",
        variant="capital letters",
    )


FORMS = (
    Form(
        "square brackets",
        ("Answer in square brackets.", "Put every answer in square brackets."),
        lambda text: f"[{text}]",
    ),
    Form(
        "quotes",
        ("Answer in double quotes.", "Put every answer in double quotes."),
        lambda text: f'"{text}"',
    ),
    Form(
        "a prefix",
        ("Begin every answer with Answer:", "Start each answer with Answer:"),
        lambda text: f"Answer: {text}",
    ),
    Form(
        "an ending",
        ("End every answer with the word over.", "Finish each answer with the word over."),
        lambda text: f"{text} over",
    ),
    Form(
        "JSON",
        (
            "Answer as a JSON object with the key answer.",
            "Reply only with a JSON object that has the key answer.",
        ),
        lambda text: json.dumps({"answer": text}),
    ),
    Form(
        "a bullet",
        ("Answer as a bullet point.", "Write every answer as a bullet point."),
        lambda text: f"- {text}",
    ),
    Form(
        "two lines",
        ("Write Result on the first line and the answer on the second.",),
        lambda text: f"Result\n{text}",
    ),
)
