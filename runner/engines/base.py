"""What the runner asks of an engine, and the two ways an engine can say no."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a started engine listens. ``url`` is the server's root, without ``/v1``."""

    url: str
    model: str
    api_key: str | None = None


class EngineError(Exception):
    """The engine did not start or died. ``reason`` is one sentence a consultant understands."""

    def __init__(self, code: str, reason: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.log_tail = list(log_tail)


class EngineRefused(EngineError):
    """The engine says that this combination of settings is not supported: a finding, no fault."""


class EngineStopped(Exception):
    """Somebody asked us to stop while the engine was starting."""


class Engine(Protocol):
    """One server start. Use once: ``start``, then ``stop``; a new run is a new object."""

    def start(self, should_stop: Callable[[], bool]) -> Endpoint:
        """Start the server and block until a real completion came back.

        Raises EngineError, EngineRefused or EngineStopped; the server is gone in each case.
        """

    def alive(self) -> bool: ...

    def metrics_text(self) -> str:
        """The raw text of ``/metrics``; empty when the engine has none."""

    def log_tail(self, lines: int = 40) -> list[str]: ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies this start: engine, version, arguments, effective settings, hardware."""

    def stop(self) -> None:
        """End the server with all its children. Safe to call twice."""
