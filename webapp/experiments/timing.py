"""Every time that leases depend on, in one place; tests shorten them by EXPERIMENT_TIMES."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True, slots=True)
class Times:
    """All in seconds."""

    lease_ttl_s: float = 60.0
    """A worker that was not heard of for this long is lost."""
    heartbeat_s: float = 10.0
    """How often a worker renews its lease; six chances before it lapses."""
    poll_s: float = 1.0
    """How often a worker looks for a cancellation and shows its progress."""
    write_patience_s: float = 60.0
    """How long a write is tried again while PostgreSQL is away."""


def times() -> Times:
    return Times(**getattr(settings, "EXPERIMENT_TIMES", {}))


LOSSES_ALLOWED = 2
"""Successors that the reaper makes for one index before it gives up."""
