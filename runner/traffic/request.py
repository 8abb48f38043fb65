"""The one definition of a normalised request. Readers make it; replay and profile use it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["chat", "completion"]


@dataclass(frozen=True, slots=True)
class NormalisedRequest:
    """One request as the client would have sent it, whatever file it came from."""

    id: str
    """Unique in its sample; the pairing key of every comparison."""
    kind: Kind
    line: int
    """1-based line of the source file, for error texts."""
    messages: tuple[dict[str, Any], ...] = ()
    """For ``chat``: the messages exactly as given."""
    prompt: str | tuple[int, ...] = ""
    """For ``completion``: text or token ids."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling and format fields to send on as they stand (temperature, top_p, stop, tools ...)."""
    max_output_tokens: int | None = None
    category: str | None = None

    @property
    def prompt_key(self) -> str:
        """Equal for requests with equal prompts, whatever their sampling."""
        content = self.messages if self.kind == "chat" else self.prompt
        text = json.dumps([self.kind, content], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def body(self, model: str, *, max_output_tokens: int | None = None) -> dict[str, Any]:
        """The JSON body for an OpenAI-compatible server, without streaming options.

        ``max_output_tokens`` is the experiment's cap: the smaller of the two limits is sent.
        """
        limits = [n for n in (self.max_output_tokens, max_output_tokens) if n is not None]
        body: dict[str, Any] = {"model": model, **self.sampling}
        if self.kind == "chat":
            body["messages"] = list(self.messages)
        else:
            body["prompt"] = list(self.prompt) if isinstance(self.prompt, tuple) else self.prompt
        if limits:
            body["max_tokens"] = min(limits)
        return body
