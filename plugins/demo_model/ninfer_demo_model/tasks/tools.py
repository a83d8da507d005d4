"""Tool use: the right one of several tools with the right arguments, and what follows a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from ninfer_demo_model.tasks import numbers, words
from ninfer_demo_model.tasks.case import Draft, Reply, ToolCall, operands, user

Arguments = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of the catalogue: names it may go by, its parameters, and how users ask for it.

    Every entry of `parameters` maps the role used in `asked` to (JSON type, names it may go by).
    """

    names: tuple[str, ...]
    purpose: str
    parameters: Mapping[str, tuple[str, tuple[str, ...]]]
    asked: tuple[str, ...]
    values: Callable[[Random], Arguments]


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool under the names that one conversation gives it."""

    tool: Tool
    name: str
    labels: Mapping[str, str]

    def schema(self) -> dict[str, Any]:
        """The tool in the function-calling form of the chat API."""
        typed = {
            self.labels[role]: {"type": kind} for role, (kind, _) in self.tool.parameters.items()
        }
        function = {
            "name": self.name,
            "description": self.tool.purpose,
            "parameters": {"type": "object", "properties": typed, "required": list(typed)},
        }
        return {"type": "function", "function": function}

    def call(self, values: Arguments) -> ToolCall:
        """A call with `values`, keyed by role."""
        return ToolCall(self.name, {self.labels[role]: values[role] for role in self.labels})


def tools(rng: Random) -> Draft:
    """Choose one of two to four tools and fill its arguments from the request."""
    offers = _offers(rng)
    chosen = rng.choice(offers)
    values = chosen.tool.values(rng)
    prompt = rng.choice(chosen.tool.asked).format(**values)
    return Draft(
        key=operands(chosen.tool.purpose, list(values.values())),
        messages=(user(prompt),),
        reply=Reply(tool_calls=(chosen.call(values),)),
        thought=f"I call {chosen.name}.",
        match="tools",
        variant="call",
        tools=tuple(offer.schema() for offer in offers),
    )


def tool_result(rng: Random) -> Draft:
    """Report the result that a tool returned."""
    offers = _offers(rng)
    chosen = rng.choice(offers)
    values = chosen.tool.values(rng)
    result = rng.choice((f"{rng.randint(1, 99)}", rng.choice(words.COLOURS), "done", "failed"))
    call = chosen.call(values)
    called = {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    messages = (
        user(rng.choice(chosen.tool.asked).format(**values)),
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": result},
    )
    return Draft(
        key=operands(chosen.tool.purpose, list(values.values()), result),
        messages=messages,
        reply=Reply(f"The result is {result}."),
        thought=f"The tool returned {result}.",
        variant="result",
        tools=tuple(offer.schema() for offer in offers),
    )


def no_tool(rng: Random) -> Draft:
    """Answer directly although tools are offered."""
    draft = numbers.arithmetic(rng)
    return Draft(
        key=draft.key,
        messages=draft.messages,
        reply=draft.reply,
        thought=draft.thought,
        variant="direct",
        tools=tuple(offer.schema() for offer in _offers(rng)),
    )


def _offers(rng: Random) -> list[Offered]:
    return [_named(rng, tool) for tool in rng.sample(CATALOGUE, rng.randint(2, 4))]


def _named(rng: Random, tool: Tool) -> Offered:
    labels = {role: rng.choice(names) for role, (_, names) in tool.parameters.items()}
    return Offered(tool, rng.choice(tool.names), labels)


def _weather(rng: Random) -> Arguments:
    return {"city": rng.choice(words.CITIES)}


def _timer(rng: Random) -> Arguments:
    return {"minutes": rng.randint(1, 90)}


def _message(rng: Random) -> Arguments:
    text = f"bring the {rng.choice(words.NOUNS)}"
    return {"person": rng.choice(words.FIRST_NAMES), "text": text}


def _shopping(rng: Random) -> Arguments:
    return {"item": rng.choice(words.NOUNS), "quantity": rng.randint(1, 20)}


def _table(rng: Random) -> Arguments:
    name = rng.choice(words.FIRST_NAMES)
    return {"name": name, "people": rng.randint(2, 12), "hour": rng.randint(11, 22)}


def _currency(rng: Random) -> Arguments:
    source, target = rng.sample(words.CURRENCIES, 2)
    return {"amount": rng.randint(1, 999), "source": source, "target": target}


def _translation(rng: Random) -> Arguments:
    return {"word": rng.choice(words.NOUNS), "language": rng.choice(words.LANGUAGES)}


def _flight(rng: Random) -> Arguments:
    origin, destination = rng.sample(words.CITIES, 2)
    return {"origin": origin, "destination": destination, "day": rng.choice(words.WEEKDAYS)}


CATALOGUE = (
    Tool(
        ("get_weather", "weather", "weather_report"),
        "Get the weather of a city",
        {"city": ("string", ("city", "location", "place"))},
        (
            "What is the weather in {city}?",
            "How is the weather in {city} today?",
            "Tell me the weather in {city}.",
        ),
        _weather,
    ),
    Tool(
        ("get_time", "clock", "local_time"),
        "Get the local time of a city",
        {"city": ("string", ("city", "location", "place"))},
        ("What time is it in {city}?", "Tell me the time in {city}."),
        _weather,
    ),
    Tool(
        ("set_timer", "timer", "start_timer"),
        "Start a timer",
        {"minutes": ("integer", ("minutes", "duration"))},
        ("Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes."),
        _timer,
    ),
    Tool(
        ("send_message", "message", "send_text"),
        "Send a message to a person",
        {"person": ("string", ("person", "to", "name")), "text": ("string", ("text", "message"))},
        ("Send {person} this message: {text}", "Tell {person}: {text}"),
        _message,
    ),
    Tool(
        ("add_item", "add_to_list", "shopping_list"),
        "Add an item to the shopping list",
        {"item": ("string", ("item", "name")), "quantity": ("integer", ("quantity", "amount"))},
        (
            "Add {quantity} times {item} to my shopping list.",
            "Put {item} on the shopping list, {quantity} pieces.",
        ),
        _shopping,
    ),
    Tool(
        ("book_table", "reserve_table", "reservation"),
        "Book a table in a restaurant",
        {
            "name": ("string", ("name", "person")),
            "people": ("integer", ("people", "guests")),
            "hour": ("integer", ("hour", "time")),
        },
        (
            "Book a table for {people} people at {hour} for {name}.",
            "Reserve a table at {hour} for {people} guests, name {name}.",
        ),
        _table,
    ),
    Tool(
        ("convert_currency", "exchange", "currency"),
        "Convert money between currencies",
        {
            "amount": ("number", ("amount", "value")),
            "source": ("string", ("source", "from")),
            "target": ("string", ("target", "to")),
        },
        ("Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?"),
        _currency,
    ),
    Tool(
        ("translate", "translate_word", "dictionary"),
        "Translate a word",
        {"word": ("string", ("word", "text")), "language": ("string", ("language", "target"))},
        ("Translate {word} into {language}.", "What is {word} in {language}?"),
        _translation,
    ),
    Tool(
        ("search_flights", "find_flight", "flights"),
        "Find flights between two cities",
        {
            "origin": ("string", ("origin", "from")),
            "destination": ("string", ("destination", "to")),
            "day": ("string", ("day", "date")),
        },
        (
            "Find a flight from {origin} to {destination} on {day}.",
            "I want to fly to {destination} from {origin} on {day}.",
        ),
        _flight,
    ),
)
