"""Prompts and answers of the simulator as tokens: one word is one token, nothing is learned."""

from __future__ import annotations

import hashlib
import json
import random
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


class BadRequest(ValueError):
    """The request has no sense; the text quotes nothing of it."""


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

    def piece(self, start: int, end: int) -> str:
        """The text of answer tokens start to end."""
        words = (VOCABULARY[token - _FIRST_WORD_ID] for token in self.answer_ids[start:end])
        return "".join(f" {word}" for word in words)


def script(body: dict[str, Any], behaviour: Behaviour) -> Script:
    """What will be answered to ``body``; raises BadRequest."""
    prompt_ids = tokenize(body)
    key = hashlib.sha256(repr(prompt_ids).encode()).hexdigest()
    limit = body.get("max_completion_tokens", body.get("max_tokens")) or _DEFAULT_MAX_TOKENS
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadRequest("max_tokens must be a whole number of at least 1")
    natural = _natural_length(key, behaviour)
    length = limit if natural is None else min(limit, natural)
    is_probe = prompt_ids == tokenize({"prompt": READINESS_PROMPT})
    seeded = f"{behaviour.seed}:{key}"
    return Script(
        prompt_ids=prompt_ids,
        answer_ids=_answer(key, length, behaviour),
        finish_reason="length" if natural is None or natural > limit else "stop",
        tokens_random=random.Random(f"{seeded}:steps"),  # noqa: S311 no secret depends on it
        failure=None if is_probe else _failure(seeded, behaviour),
        is_probe=is_probe,
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


def _answer(key: str, length: int, behaviour: Behaviour) -> tuple[int, ...]:
    words = random.Random(f"{key}:answer")  # noqa: S311
    ids = words.choices(range(_FIRST_WORD_ID, _FIRST_WORD_ID + len(VOCABULARY)), k=length)
    if behaviour.corrupt_token_rate:
        chance = random.Random(f"{behaviour.seed}:{key}:corrupt")  # noqa: S311
        for place, token in enumerate(ids):
            if chance.random() < behaviour.corrupt_token_rate:
                other = (token - _FIRST_WORD_ID + 1) % len(VOCABULARY)
                ids[place] = _FIRST_WORD_ID + other
    return tuple(ids)


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
