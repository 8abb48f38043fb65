"""Text that we make up for the tiny test models: requests of a few kinds with their answers.

Answers repeat themselves and their request, as replies, code edits and JSON do, so that drafts are
really accepted. Pure and seeded; ``examples(seed=...)`` with another seed gives requests that the
models were not trained on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

_ITEMS = ("lamp", "chair", "table", "shelf", "clock", "mirror", "carpet", "basket")
_COLOURS = ("blue", "green", "red", "white", "black", "brown")
_CITIES = ("Lisbon", "Porto", "Bergen", "Ghent", "Turin", "Graz")
_NAMES = ("total", "count", "price", "width", "speed", "limit", "value", "weight")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_PLACES = ("harbour", "forest", "market", "station", "garden", "bridge")


@dataclass(frozen=True, slots=True)
class Example:
    kind: str
    request: str
    answer: str


def examples(*, seed: int, count: int) -> list[Example]:
    """``count`` examples, the kinds in turn."""
    # Seeded on purpose: the same text, hence the same models, on each machine.
    generator = random.Random(seed)  # noqa: S311
    makers = list(_MAKERS.items())
    made = []
    for number in range(count):
        kind, maker = makers[number % len(makers)]
        request, answer = maker(generator)
        made.append(Example(kind, request, answer))
    return made


def _reply(generator: random.Random) -> tuple[str, str]:
    item, day = generator.choice(_ITEMS), generator.choice(_DAYS)
    return (
        f"Write a reply to a customer whose {item} comes on {day}.",
        f"Dear customer, thank you for your message. Your {item} left our store today. "
        f"Your {item} will arrive on {day}. We are sorry for the delay. "
        f"Thank you for your patience. Kind regards, the store team",
    )


def _code(generator: random.Random) -> tuple[str, str]:
    first, second = generator.sample(_NAMES, 2)
    lines = [
        f"def update_{first}(item):",
        f"    item.{first} = item.{first} + 1",
        f"    item.{second} = item.{second} + 1",
        "    return item",
        "",
        f"def reset_{first}(item):",
        f"    item.{first} = 0",
        f"    item.{second} = 0",
        "    return item",
    ]
    return f"Write update and reset for {first} and {second}.", "\n".join(lines)


def _json(generator: random.Random) -> tuple[str, str]:
    rows = [
        (generator.choice(_ITEMS), generator.choice(_COLOURS), generator.choice(_CITIES))
        for _ in range(3)
    ]
    request = "Extract as JSON: " + ". ".join(f"{c} {i} to {city}" for i, c, city in rows) + "."
    answer = ",\n ".join(
        f'{{"item": "{i}", "colour": "{c}", "city": "{city}"}}' for i, c, city in rows
    )
    return request, f"[{answer}]"


def _quote(generator: random.Random) -> tuple[str, str]:
    item, colour = generator.choice(_ITEMS), generator.choice(_COLOURS)
    sentence = f"The {colour} {item} is by the {generator.choice(_PLACES)}."
    return f'Say it three times: "{sentence}"', f"{sentence} {sentence} {sentence}"


def _story(generator: random.Random) -> tuple[str, str]:
    place, other = generator.sample(_PLACES, 2)
    colour, day = generator.choice(_COLOURS), generator.choice(_DAYS)
    return (
        f"Tell a story about the {place}.",
        f"One {day} a girl walked to the {place}. She saw a {colour} bird near the {other}. "
        f"The bird flew over the {place} and sang. "
        f"On the way home she told her friend about the {colour} bird.",
    )


_MAKERS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "reply": _reply,
    "code": _code,
    "json": _json,
    "quote": _quote,
    "story": _story,
}
