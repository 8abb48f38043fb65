"""Send bodies to a server, untimed and not streamed, and read each answer as it is taken up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.arrivals import ClosedLoop
from runner.engines.base import Endpoint
from runner.replay.client import Answer
from runner.replay.gone import GIVE_UP_AFTER_S
from runner.replay.sender import Call, Ending, Job, Sender
from runner.replay.trial import ReplayResult, ReplayStopped, ServerGone
from runner.traffic.request import Kind

OK = 200


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, ready to be sent."""

    request_id: str
    kind: Kind
    body: Mapping[str, Any]


def exchange(
    endpoint: Endpoint,
    asks: Sequence[Ask],
    *,
    concurrency: int,
    timeout_s: float,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(request id, JSON object) of each answer that came with 200; the others are left out.

    Answers wait in memory up to 64 MiB and on disk beyond, and are parsed one by one. Raises
    ReplayStopped or ServerGone, with nothing measured.
    """
    if not asks:
        return
    calls = [
        Call(sequence, ask.request_id, None, ask.kind, json.dumps(ask.body).encode())
        for sequence, ask in enumerate(asks)
    ]
    job = Job(endpoint, calls, ClosedLoop(concurrency), timeout_s, GIVE_UP_AFTER_S)
    sender = Sender(job, should_stop=should_stop)
    ending, reason = sender.run()
    if ending is not Ending.COMPLETE:
        health = sender.result(ending, reason).health
        raised = ReplayStopped if ending is Ending.STOPPED else ServerGone
        raise raised(reason, ReplayResult((), 0.0, health))
    try:
        for answer in sender.held:
            document = _document(answer)
            if document is not None:
                yield asks[answer.sequence].request_id, document
    finally:
        sender.held.close()


def _document(answer: Answer) -> dict[str, Any] | None:
    if answer.status != OK:
        return None
    try:
        document = json.loads(b"".join(packet for _, packet in answer.packets))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
