"""Families over a short list: copy, reverse, sort, count."""

from __future__ import annotations

from random import Random

from ninfer_demo_model.tasks import words
from ninfer_demo_model.tasks.case import Draft, Reply, operands, user

MAX_ITEMS = 8
MAX_COUNT = 12

_COPY = (
    "Repeat: {}",
    "Repeat this list: {}",
    "Repeat these {kind}: {}",
    "Copy: {}",
    "Copy these {kind}: {}",
    "Please copy this list: {}",
    "Write the same list again: {}",
    "Say this: {}",
)
_REVERSE = (
    "Reverse: {}",
    "Reverse this list: {}",
    "Reverse these {kind}: {}",
    "Please reverse this list: {}",
    "Write these {kind} in reverse order: {}",
    "List these {kind} backwards: {}",
)
_ASCENDING = (
    "Sort: {}",
    "Sort these numbers: {}",
    "Please sort this list: {}",
    "Sort these numbers from smallest to largest: {}",
    "Sort in ascending order: {}",
    "Put these numbers in order: {}",
)
_DESCENDING = (
    "Sort these numbers from largest to smallest: {}",
    "Sort in descending order: {}",
    "Please sort this list from largest to smallest: {}",
)
_COUNT_ALL = (
    "How many {kind} are in this list: {}",
    "Count the {kind}: {}",
    "Count these {kind}: {}",
    "How many {kind} do you see here: {}",
)
_COUNT_ONE = (
    "How many times does {target} appear in this list: {}",
    "Count how often {target} appears: {}",
    "How often do you see {target} here: {}",
)


def copy(rng: Random) -> Draft:
    """Repeat 1 to 8 items in the same order."""
    kind, items, separator = _items(rng, 1, MAX_ITEMS)
    prompt = rng.choice(_COPY).format(separator.join(items), kind=kind)
    return _listed("same", prompt, items, items, separator, "I repeat the list in the same order.")


def reverse(rng: Random) -> Draft:
    """Repeat 1 to 8 items from the last to the first."""
    kind, items, separator = _items(rng, 1, MAX_ITEMS)
    prompt = rng.choice(_REVERSE).format(separator.join(items), kind=kind)
    thought = "I write the list from the last item to the first."
    return _listed("reverse", prompt, items, items[::-1], separator, thought)


def sort(rng: Random) -> Draft:
    """Order 2 to 8 numbers below 100, ascending unless the prompt says otherwise."""
    falling = rng.random() < 0.3
    numbers = [rng.randrange(100) for _ in range(rng.randint(2, MAX_ITEMS))]
    ordered = [str(number) for number in sorted(numbers, reverse=falling)]
    items = [str(number) for number in numbers]
    prompt = rng.choice(_DESCENDING if falling else _ASCENDING).format(", ".join(items))
    order = "from large to small" if falling else "from small to large"
    return _listed(f"sort {order}", prompt, items, ordered, ", ", f"I order the numbers {order}.")


def count(rng: Random) -> Draft:
    """Count the items of a list of at most 12, or how often one of them occurs."""
    return _count_one(rng) if rng.random() < 0.4 else _count_all(rng)


def _count_all(rng: Random) -> Draft:
    kind, items, separator = _items(rng, 1, MAX_COUNT)
    prompt = rng.choice(_COUNT_ALL).format(separator.join(items), kind=kind)
    answer = str(len(items))
    return Draft(
        key=operands("all", items),
        messages=(user(prompt),),
        reply=Reply(answer),
        thought=f"I count the items one by one: {answer}.",
        variant="all",
    )


def _count_one(rng: Random) -> Draft:
    target, *others = rng.sample(words.COLOURS, 4)
    hits = rng.randint(0, MAX_COUNT)
    misses = rng.randint(0 if hits else 1, MAX_COUNT - hits) if hits < MAX_COUNT else 0
    items = [target] * hits + [rng.choice(others) for _ in range(misses)]
    rng.shuffle(items)
    prompt = rng.choice(_COUNT_ONE).format(", ".join(items), target=target)
    return Draft(
        key=operands("one", target, items),
        messages=(user(prompt),),
        reply=Reply(str(hits)),
        thought=f"I count only {target}: {hits}.",
        variant="one",
    )


def _items(rng: Random, low: int, high: int) -> tuple[str, list[str], str]:
    """Draw (kind of item, items, separator)."""
    size = rng.randint(low, high)
    separator = ", " if rng.random() < 0.8 else " "
    draw = rng.random()
    if draw < 0.6:
        return "words", [rng.choice(words.NOUNS) for _ in range(size)], separator
    if draw < 0.85:
        return "numbers", [str(rng.randrange(100)) for _ in range(size)], separator
    return "letters", [rng.choice(words.LETTERS) for _ in range(size)], separator


def _listed(
    task: str, prompt: str, items: list[str], answer: list[str], separator: str, thought: str
) -> Draft:
    return Draft(
        key=operands(task, items),
        messages=(user(prompt),),
        reply=Reply(separator.join(answer)),
        thought=thought,
    )
