"""Recall: a fact told earlier, in one message, over several turns, or behind a long text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from ninfer_demo_model.tasks import lists, numbers, words
from ninfer_demo_model.tasks.case import Draft, Message, Reply, assistant, operands, user

LONG_WORDS = (1500, 1750)
"""Words of filler in the `long` variant; every word is at least one token."""

MEDIUM_WORDS = (60, 1500)
"""Words of filler in the `medium` variant, which only training draws."""

_OPENERS = ("Remember this.", "Please remember:", "Keep this in mind.", "Some facts about me.", "")
_NOTED = ("Noted.", "Understood.", "I will remember that.", "Thank you, noted.")
_FILLER = (
    "The {noun} stands near the {other}.",
    "A {colour} {noun} is behind the {other}.",
    "Nobody saw the {noun} on {day}.",
    "In {month} the {noun} was sold to a {job}.",
    "The {job} painted a {noun} and a {other}.",
    "There was a {noun} on the {other} in {city}.",
    "Every {day} the {job} cleans the {noun}.",
    "People in {city} like the {colour} {noun}.",
    "The old {noun} was moved next to the {other} in {month}.",
    "After the rain the {noun} looked {colour}.",
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement, the question it answers, and the answer."""

    topic: str
    told: str
    asked: str
    answer: str


Kind = Callable[[Random], Fact]


def recall(rng: Random) -> Draft:
    """Draw one of the graded variants evenly."""
    return rng.choice((recall_single, recall_turns, recall_long))(rng)


def recall_single(rng: Random) -> Draft:
    """Two to five facts, then the question in the same message or the next turn."""
    facts = _facts(rng, rng.randint(2, 5))
    wanted = rng.choice(facts)
    told = _opened(rng, facts)
    if rng.random() < 0.5:
        return _draft("single", (user(f"{told} {wanted.asked}"),), facts, wanted)
    messages = (user(told), assistant(rng.choice(_NOTED)), user(wanted.asked))
    return _draft("single", messages, facts, wanted)


def recall_bound(rng: Random) -> Draft:
    """Three to six facts of one kind, so that only the right subject tells them apart."""
    kind = rng.choice(_REPEATABLE)
    facts = _facts(rng, rng.randint(3, 6), (kind,))
    wanted = rng.choice(facts)
    return _draft("bound", (user(f"{_opened(rng, facts)} {wanted.asked}"),), facts, wanted)


def recall_turns(rng: Random) -> Draft:
    """Facts spread over turns, with other tasks between them and the question."""
    facts = _facts(rng, rng.randint(2, 5))
    messages: list[Message] = []
    for fact in facts:
        messages += [user(fact.told), assistant(rng.choice(_NOTED))]
        if rng.random() < 0.4:
            messages += _detour(rng)
    for _ in range(rng.randint(1, 2)):
        messages += _detour(rng)
    wanted = rng.choice(facts)
    return _draft("turns", (*messages, user(wanted.asked)), facts, wanted)


def recall_long(rng: Random) -> Draft:
    """The question stands more than 1,500 tokens after the fact."""
    return _behind_filler(rng, "long", rng.randint(*LONG_WORDS))


def recall_medium(rng: Random) -> Draft:
    """As `recall_long`, with less text in between."""
    return _behind_filler(rng, "medium", rng.randint(*MEDIUM_WORDS))


def _behind_filler(rng: Random, variant: str, filler_words: int) -> Draft:
    facts = _facts(rng, rng.randint(1, 4))
    wanted = rng.choice(facts)
    told, filler = _opened(rng, facts), _filler(rng, filler_words)
    if rng.random() < 0.5:
        question = f"{told}\n\n{filler}\n\n{wanted.asked}"
        return _draft(variant, (user(question),), facts, wanted)
    messages = (
        user(told),
        assistant(rng.choice(_NOTED)),
        user(f"Read this text: {filler}"),
        assistant(rng.choice(_NOTED)),
        user(wanted.asked),
    )
    return _draft(variant, messages, facts, wanted)


def _filler(rng: Random, least_words: int) -> str:
    sentences: list[str] = []
    spoken = 0
    while spoken < least_words:
        sentence = rng.choice(_FILLER).format(
            noun=rng.choice(words.NOUNS),
            other=rng.choice(words.NOUNS),
            colour=rng.choice(words.COLOURS),
            day=rng.choice(words.WEEKDAYS),
            month=rng.choice(words.MONTHS),
            city=rng.choice(words.CITIES),
            job=rng.choice(words.JOBS),
        )
        sentences.append(sentence)
        spoken += len(sentence.split())
    return " ".join(sentences)


def _detour(rng: Random) -> list[Message]:
    draft = rng.choice((lists.copy, lists.reverse, lists.sort, numbers.arithmetic))(rng)
    return [*draft.messages, assistant(draft.reply.text)]


def _opened(rng: Random, facts: list[Fact]) -> str:
    return " ".join([rng.choice(_OPENERS), *(fact.told for fact in facts)]).strip()


def _draft(variant: str, messages: tuple[Message, ...], facts: list[Fact], wanted: Fact) -> Draft:
    told = [f"{fact.topic}={fact.answer}" for fact in facts]
    return Draft(
        key=operands(told, wanted.topic),
        messages=messages,
        reply=Reply(wanted.answer),
        thought=f"The user said: {wanted.told}",
        variant=variant,
    )


def _facts(rng: Random, size: int, kinds: Sequence[Kind] | None = None) -> list[Fact]:
    """Facts with `size` different topics."""
    found: dict[str, Fact] = {}
    while len(found) < size:
        fact = rng.choice(kinds or _KINDS)(rng)
        found.setdefault(fact.topic, fact)
    return list(found.values())


def _pet(rng: Random) -> Fact:
    pet, name = rng.choice(words.PETS), rng.choice(words.PET_NAMES)
    asked = rng.choice((f"What is my {pet} called?", f"What is the name of my {pet}?"))
    return Fact(pet, f"My {pet} is called {name}.", asked, name)


def _home(rng: Random) -> Fact:
    relative, city = rng.choice(words.RELATIVES), rng.choice(words.CITIES)
    asked = rng.choice(
        (f"Where does my {relative} live?", f"In which city does my {relative} live?")
    )
    return Fact(f"home of {relative}", f"My {relative} lives in {city}.", asked, city)


def _taste(rng: Random) -> Fact:
    colour = rng.choice(words.COLOURS)
    told = f"My favorite color is {colour}."
    return Fact("color", told, "What is my favorite color?", colour)


def _code(rng: Random) -> Fact:
    place, code = rng.choice(words.LOCKED), f"{rng.randrange(10_000):04d}"
    asked = rng.choice((f"What is the code for the {place}?", f"Which code opens the {place}?"))
    return Fact(f"code of {place}", f"The code for the {place} is {code}.", asked, code)


def _place(rng: Random) -> Fact:
    thing, room = rng.choice(words.OBJECTS), rng.choice(words.ROOMS)
    asked = rng.choice((f"In which room is the {thing}?", f"Which room is the {thing} in?"))
    return Fact(f"place of {thing}", f"The {thing} is in the {room}.", asked, room)


def _job(rng: Random) -> Fact:
    """One topic whoever it is about: the model does not tell two people's jobs apart."""
    name, job = rng.choice(words.FIRST_NAMES), rng.choice(words.JOBS)
    asked = rng.choice((f"What is the job of {name}?", f"What does {name} work as?"))
    return Fact("job", f"{name} works as a {job}.", asked, job)


_REPEATABLE: tuple[Kind, ...] = (_pet, _home, _code, _place)
_KINDS: tuple[Kind, ...] = (_pet, _home, _taste, _code, _place, _job)
