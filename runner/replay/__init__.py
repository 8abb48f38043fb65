"""The load generator: when to send (schedule), how to send (client), how to count (count)."""

from runner.replay.trial import (
    NoSpace,
    OverCapacity,
    ReplayInterrupted,
    ReplayResult,
    ReplayStopped,
    ServerGone,
    replay,
)

__all__ = [
    "NoSpace",
    "OverCapacity",
    "ReplayInterrupted",
    "ReplayResult",
    "ReplayStopped",
    "ServerGone",
    "replay",
]
