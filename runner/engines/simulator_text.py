"""Prompts and answers of the simulator as tokens: one word is one token, nothing is learned.

Its "model" is a hash: all tokens so far say which comes next, which is the runner-up, and by how
many nats the first leads. So a text that left the usual one goes on as another, and a text that is
given to it can be scored token by token.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.engines.simulator_behaviour import READINESS_PROMPT, Behaviour

START_TOKEN = 1
_FIRST_WORD_ID = 100
VOCABULARY = tuple(
    f"{first}{last}"
    for first in ("ba", "ce", "di", "fo", "gu", "ha", "le", "mi", "no", "ru", "sa", "te", "vi")
    for last in ("l", "mar", "ne", "pos", "rik", "sun", "tal", "von")
)
_PROMPT_IDS = 50_000
_DEFAULT_MAX_TOKENS = 256
_MEAN_LEAD_NATS = 3.0
_FAR_BELOW_NATS = 6.0
"""How much less likely than the runner-up every other token is."""
_STATE_BYTES = 16


class BadRequest(ValueError):
    """The request has no sense; the text quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Step:
    """The model's two likeliest tokens at one place. The lead has this start's noise in it."""

    first: int
    second: int
    lead_nats: float

    @property
    def chosen(self) -> int:
        return self.first if self.lead_nats >= 0 else self.second

    def logprobs(self, token: int) -> dict[int, float]:
        """Log probabilities of the likeliest two and of ``token``, the likeliest first."""
        best = -math.log1p(math.exp(-abs(self.lead_nats)))
        other = self.second if self.chosen == self.first else self.first
        found = {self.chosen: best, other: best - abs(self.lead_nats)}
        return found | {token: found.get(token, best - abs(self.lead_nats) - _FAR_BELOW_NATS)}


class Model:
    """Reads tokens one by one. ``noise`` is the server's own, which differs between starts."""

    def __init__(self, noise: random.Random, noise_nats: float) -> None:
        self._state = b""
        self._noise, self._noise_nats = noise, noise_nats

    def read(self, token: int) -> None:
        text = self._state + token.to_bytes(8, "big")
        self._state = hashlib.blake2b(text, digest_size=_STATE_BYTES).digest()

    def step(self) -> Step:
        words, state = len(VOCABULARY), self._state
        first = int.from_bytes(state[:4], "big") % words
        second = (first + 1 + int.from_bytes(state[4:8], "big") % (words - 1)) % words
        chance = (int.from_bytes(state[8:12], "big") + 1) / 2**32
        lead = -_MEAN_LEAD_NATS * math.log(chance)
        if self._noise_nats:
            lead += self._noise.gauss(0.0, self._noise_nats)
        return Step(_FIRST_WORD_ID + first, _FIRST_WORD_ID + second, lead)


@dataclass(frozen=True, slots=True)
class Script:
    """Everything about one answer that does not depend on time."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    finish_reason: str
    tokens_random: random.Random
    """Draws the tokens of each step; of the request's own, so that load does not change them."""
    failure: str | None
    """None, "error", "cut" or "refuse"."""
    is_probe: bool
    steps: tuple[Step, ...] = ()
    """What the model thought at each answer token."""
    prompt_steps: tuple[Step, ...] = ()
    """The same at each prompt token after the first; empty where nobody asked."""

    def piece(self, start: int, end: int) -> str:
        """The text of answer tokens start to end."""
        return "".join(f" {word(token)}" for token in self.answer_ids[start:end])


def word(token: int) -> str:
    """The text of an answer token."""
    return VOCABULARY[token - _FIRST_WORD_ID]


def script(
    body: dict[str, Any], behaviour: Behaviour, noise: random.Random | None = None
) -> Script:
    """What will be answered to ``body``; raises BadRequest. ``noise`` is the server start's."""
    prompt_ids = tokenize(body)
    model = Model(noise or random.Random(0), behaviour.numerics_noise_nats)  # noqa: S311
    prompt_steps = _read(model, prompt_ids, score=body.get("prompt_logprobs") is not None)
    key = hashlib.sha256(repr(prompt_ids).encode()).hexdigest()
    limit = body.get("max_completion_tokens", body.get("max_tokens")) or _DEFAULT_MAX_TOKENS
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadRequest("max_tokens must be a whole number of at least 1")
    natural = _natural_length(key, behaviour)
    length = limit if natural is None else min(limit, natural)
    is_probe = prompt_ids == tokenize({"prompt": READINESS_PROMPT})
    seeded = f"{behaviour.seed}:{key}"
    answer_ids, steps = _answer(model, f"{seeded}:corrupt", length, behaviour)
    return Script(
        prompt_ids=prompt_ids,
        answer_ids=answer_ids,
        finish_reason="length" if natural is None or natural > limit else "stop",
        tokens_random=random.Random(f"{seeded}:steps"),  # noqa: S311 no secret depends on it
        failure=None if is_probe else _failure(seeded, behaviour),
        is_probe=is_probe,
        steps=steps,
        prompt_steps=prompt_steps,
    )


def tokenize(body: dict[str, Any]) -> tuple[int, ...]:
    """Token ids of a chat, completion or tokenize body: a start token, then one per word."""
    if "messages" in body:
        text = _messages_text(body["messages"])
    else:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            return tuple(prompt)
        if not isinstance(prompt, str):
            raise BadRequest("a request needs messages, or a prompt of text or token ids")
        text = prompt
    start = () if body.get("add_special_tokens") is False else (START_TOKEN,)
    return (*start, *(_word_id(word) for word in text.split()))


def _messages_text(messages: object) -> str:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message")
    words = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest("each message needs a role")
        content = message.get("content")
        words.append(f"<{message['role']}>")
        words.append(content if isinstance(content, str) else json.dumps(content))
    return " ".join(words)


def _word_id(word: str) -> int:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return _FIRST_WORD_ID + int.from_bytes(digest, "big") % _PROMPT_IDS


def _natural_length(key: str, behaviour: Behaviour) -> int | None:
    mean = behaviour.output_tokens
    if mean is None:
        return None
    # By the prompt alone: arms with different seeds still write answers of one length.
    place = random.Random(f"{key}:length").uniform(-1.0, 1.0)  # noqa: S311
    return max(1, round(mean * (1.0 + behaviour.output_tokens_spread * place)))


def _read(model: Model, prompt_ids: Sequence[int], *, score: bool) -> tuple[Step, ...]:
    steps = []
    for token in prompt_ids:
        if score:
            steps.append(model.step())
        model.read(token)
    return tuple(steps[1:])


def _answer(
    model: Model, seeded: str, length: int, behaviour: Behaviour
) -> tuple[tuple[int, ...], tuple[Step, ...]]:
    chance = random.Random(seeded)  # noqa: S311 no secret depends on it
    ids, steps = [], []
    for _ in range(length):
        step = model.step()
        token = step.chosen
        if behaviour.corrupt_token_rate and chance.random() < behaviour.corrupt_token_rate:
            other = token - _FIRST_WORD_ID + chance.randrange(1, len(VOCABULARY))
            token = _FIRST_WORD_ID + other % len(VOCABULARY)
        model.read(token)
        ids.append(token)
        steps.append(step)
    return tuple(ids), tuple(steps)


def _failure(seeded: str, behaviour: Behaviour) -> str | None:
    place = random.Random(f"{seeded}:failure").random()  # noqa: S311
    for name, rate in (
        ("refuse", behaviour.refuse_rate),
        ("error", behaviour.error_rate),
        ("cut", behaviour.cut_rate),
    ):
        if place < rate:
            return name
        place -= rate
    return None
