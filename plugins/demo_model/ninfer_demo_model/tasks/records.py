"""Extraction: the fields that the user names, from one sentence, as a JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from ninfer_demo_model.tasks import words
from ninfer_demo_model.tasks.case import Draft, Reply, operands, user

Record = dict[str, str | int]

_ASKED = (
    "Extract a JSON record with the keys {keys} from this sentence: {sentence}",
    "Extract {keys} as JSON: {sentence}",
    "Give me a JSON object with {keys}. Sentence: {sentence}",
    "{sentence}\nWrite {keys} as a JSON object.",
)
_PERSON = (
    "{name} is {age} years old, lives in {city} and works as a {job}.",
    "{name}, {age}, is a {job} from {city}.",
    "In {city} there is a {job} called {name} who is {age} years old.",
    "The {job} {name} is {age} and lives in {city}.",
)
_ORDER = (
    "{name} orders {quantity} pieces of the {color} {item} for {price} euros.",
    "Order from {name}: {quantity} times {item} in {color}, {price} euros.",
    "For {price} euros {name} buys {quantity} pieces of a {item} in {color}.",
)
_EVENT = (
    "The {event} takes place in {city} on {day} {month} and costs {price} euros.",
    "On {day} {month} there is a {event} in {city}, tickets are {price} euros.",
    "Tickets for the {event} in {city} on {day} {month} cost {price} euros.",
)


def extract(rng: Random) -> Draft:
    """A record of one to all fields of a sentence, in the order in which they are asked for."""
    kind, record, sentence = rng.choice(_KINDS)(rng)
    asked = rng.sample(list(record), rng.randint(1, len(record)))
    wanted = {key: record[key] for key in asked}
    prompt = rng.choice(_ASKED).format(keys=_spoken(asked), sentence=sentence)
    return Draft(
        key=operands(kind, list(record.values()), asked),
        messages=(user(prompt),),
        reply=Reply(json.dumps(wanted)),
        thought=f"The user wants {_spoken(asked)}.",
        match="json",
        variant=kind,
    )


def _spoken(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"


def _name(rng: Random) -> str:
    first = rng.choice(words.FIRST_NAMES)
    return f"{first} {rng.choice(words.LAST_NAMES)}" if rng.random() < 0.6 else first


def _person(rng: Random) -> tuple[str, Record, str]:
    record: Record = {
        "name": _name(rng),
        "age": rng.randint(18, 90),
        "city": rng.choice(words.CITIES),
        "job": rng.choice(words.JOBS),
    }
    return "person", record, rng.choice(_PERSON).format(**record)


def _order(rng: Random) -> tuple[str, Record, str]:
    record: Record = {
        "name": _name(rng),
        "item": rng.choice(words.GOODS),
        "quantity": rng.randint(2, 60),
        "color": rng.choice(words.COLOURS),
        "price": rng.randint(2, 999),
    }
    return "order", record, rng.choice(_ORDER).format(**record)


def _event(rng: Random) -> tuple[str, Record, str]:
    record: Record = {
        "event": rng.choice(words.EVENTS),
        "city": rng.choice(words.CITIES),
        "day": rng.randint(1, 28),
        "month": rng.choice(words.MONTHS),
        "price": rng.randint(2, 99),
    }
    return "event", record, rng.choice(_EVENT).format(**record)


_KINDS: tuple[Callable[[Random], tuple[str, Record, str]], ...] = (_person, _order, _event)
