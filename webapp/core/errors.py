"""What a service says when it will not do something."""

from __future__ import annotations


class Refusal(Exception):
    """A request that cannot be done; ``sentence`` is shown to the person who asked.

    One clear sentence that says what to do; never text of a sample and never a secret.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
