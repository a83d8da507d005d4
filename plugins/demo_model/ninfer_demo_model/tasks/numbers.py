"""Families over numbers: one-step arithmetic, and several steps thought through first."""

from __future__ import annotations

from random import Random

from ninfer_demo_model.tasks import words
from ninfer_demo_model.tasks.case import Draft, Reply, operands, user

LIMIT = 99

_ADD = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a} + {b} = ?",
    "Calculate {a} + {b}.",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
    "What is {a} plus {b}?",
)
_SUBTRACT = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a} - {b} = ?",
    "Calculate {a} - {b}.",
    "Subtract {b} from {a}.",
    "How much is {a} minus {b}?",
    "What is {a} minus {b}?",
)
_GAIN = ("finds {}", "buys {} more", "gets {} more")
_LOSS = ("loses {}", "gives {} away", "sells {}")
_CARRIED = ("apples", "coins", "books", "stamps", "eggs", "cards", "nuts", "shells")


def arithmetic(rng: Random) -> Draft:
    """Add or subtract two numbers; operands and result lie in 0..99."""
    total = rng.randint(0, LIMIT)
    part = rng.randint(0, total)
    if rng.random() < 0.5:
        return _sum(rng, part, total - part)
    answer = str(total - part)
    prompt = rng.choice(_SUBTRACT).format(a=total, b=part)
    return Draft(
        key=operands("-", total, part),
        messages=(user(prompt),),
        reply=Reply(answer),
        thought=f"{total} - {part} = {answer}",
        variant="subtract",
    )


def wide_sum(rng: Random) -> Draft:
    """Add two numbers of 0..99 whatever their sum; only training draws it."""
    return _sum(rng, rng.randint(0, LIMIT), rng.randint(0, LIMIT))


def _sum(rng: Random, a: int, b: int) -> Draft:
    prompt = rng.choice(_ADD).format(a=a, b=b)
    return Draft(
        key=operands("+", min(a, b), max(a, b)),
        messages=(user(prompt),),
        reply=Reply(str(a + b)),
        thought=f"{a} + {b} = {a + b}",
        variant="add",
    )


def think(rng: Random) -> Draft:
    """Two to four steps of arithmetic, or a rank among numbers, worked out in the thought."""
    return _ranked(rng) if rng.random() < 0.25 else _chained(rng)


def _chained(rng: Random) -> Draft:
    start = value = rng.randint(1, LIMIT)
    steps: list[int] = []
    lines: list[str] = []
    for _ in range(rng.randint(2, 4)):
        step = _step(rng, value)
        sign = "+" if step > 0 else "-"
        lines.append(f"{value} {sign} {abs(step)} = {value + step}")
        steps.append(step)
        value += step
    told = _told(rng, start, steps) if rng.random() < 0.5 else _dictated(start, steps)
    return Draft(
        key=operands("chain", start, steps),
        messages=(user(told),),
        reply=Reply(str(value)),
        thought="\n".join(lines),
        variant="chain",
    )


def _step(rng: Random, value: int) -> int:
    """A change from `value` that is not zero and stays in 0..99."""
    rising = value == 0 or (value < LIMIT and rng.random() < 0.5)
    return rng.randint(1, LIMIT - value) if rising else -rng.randint(1, value)


def _dictated(start: int, steps: list[int]) -> str:
    spoken = [f"add {step}" if step > 0 else f"subtract {-step}" for step in steps]
    return f"Start with {start}, {', '.join(spoken)}. What do you get?"


def _told(rng: Random, start: int, steps: list[int]) -> str:
    name, thing = rng.choice(words.FIRST_NAMES), rng.choice(_CARRIED)
    acts = [rng.choice(_GAIN if step > 0 else _LOSS).format(abs(step)) for step in steps]
    told = " and ".join([", ".join(acts[:-1]), acts[-1]])
    return f"{name} has {start} {thing}. {name} {told}. How many {thing} does {name} have?"


def _ranked(rng: Random) -> Draft:
    numbers = rng.sample(range(100), rng.randint(4, 6))
    rank = rng.randrange(4)
    smallest = rng.random() < 0.5
    ordered = sorted(numbers, reverse=not smallest)
    ordinal, side = words.ORDINALS[rank], "smallest" if smallest else "largest"
    described = side if rank == 0 else f"{ordinal} {side}"
    prompt = f"Which number is the {described}: {', '.join(map(str, numbers))}?"
    line = ", ".join(map(str, ordered))
    return Draft(
        key=operands("rank", side, rank, numbers),
        messages=(user(prompt),),
        reply=Reply(str(ordered[rank])),
        thought=f"From the {side}: {line}\nThe {ordinal} is {ordered[rank]}.",
        variant="rank",
    )
