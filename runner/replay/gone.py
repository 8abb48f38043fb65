"""When to call a server gone: it takes no connections any more, or takes them and says nothing."""

from __future__ import annotations

from time import perf_counter_ns

from calculator.measurement import NS_PER_S
from runner.replay.client import NO_SERVER, Answer, End

GONE_AFTER = 5
"""Connections in a row that failed before the server may be called gone."""
GIVE_UP_AFTER_S = 3.0
"""And for how long they failed: a server that restarts refuses for a moment."""


class Presence:
    """Told of every answer, in the order in which they ended."""

    def __init__(self, *, timeout_s: float, most_silent: int, give_up_after_s: float) -> None:
        self._timeout_s = timeout_s
        self._most_silent = most_silent
        self._give_up_after_s = give_up_after_s
        self._answers = 0
        self._failed_in_a_row = 0
        self._failing_since_ns = 0
        self._silent_in_a_row = 0

    def note(self, answer: Answer) -> None:
        self._answers += 1
        silent = answer.end is End.TIMEOUT and answer.status is None
        self._silent_in_a_row = self._silent_in_a_row + 1 if silent else 0
        if answer.end not in NO_SERVER:
            self._failed_in_a_row = 0
            return
        self._failed_in_a_row += 1
        if self._failed_in_a_row == 1:
            self._failing_since_ns = answer.sent_ns

    @property
    def failing(self) -> bool:
        """The last connections all failed, for however short a time."""
        return self._failed_in_a_row >= GONE_AFTER

    @property
    def hangs(self) -> bool:
        return self._silent_in_a_row >= self._most_silent

    @property
    def gone(self) -> bool:
        failing_ns = perf_counter_ns() - self._failing_since_ns
        return self.hangs or (self.failing and failing_ns >= self._give_up_after_s * NS_PER_S)

    @property
    def reason(self) -> str:
        if self.hangs:
            return (
                f"The server takes requests and answers none: {self._silent_in_a_row} in a row "
                f"got not one byte in {self._timeout_s:g} s each."
            )
        return (
            f"The server stopped taking connections: {self._failed_in_a_row} requests in a row "
            f"got none, after {self._answers - self._failed_in_a_row} that did."
        )
