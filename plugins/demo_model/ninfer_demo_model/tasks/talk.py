"""Small talk, so that a greeting gets a sensible reply. Its operand space is too small to split."""

from __future__ import annotations

from random import Random

from ninfer_demo_model.tasks.case import Draft, Reply, user

_ABOUT = (
    "I am a tiny demo model. I can copy, reverse, sort and count short lists, add and subtract, "
    "remember facts, extract JSON records and call tools."
)
_TALK = (
    (("Hello", "Hello!", "Hi", "Hi!", "Hey", "Good morning"), "Hello! How can I help you?"),
    (("Who are you?", "What are you?", "What can you do?", "Help", "Help me"), _ABOUT),
    (("Thanks", "Thank you!", "Thank you", "Thanks!"), "You are welcome."),
    (("Bye", "Goodbye", "Goodbye!", "See you"), "Goodbye!"),
    (("How are you?", "How are you today?"), "I am fine, thank you. How can I help you?"),
)


def talk(rng: Random) -> Draft:
    """A greeting, a farewell, thanks, or a question about the model."""
    said, answer = rng.choice(_TALK)
    prompt = rng.choice(said)
    return Draft(
        key=prompt,
        messages=(user(prompt),),
        reply=Reply(answer),
        thought="The user is talking to me.",
        variant="talk",
    )
