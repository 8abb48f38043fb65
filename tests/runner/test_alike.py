"""Known frames of events change how fast an answer is counted, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from calculator.measurement import Measurement, Outcome
from runner.replay.alike import Frame, frames
from runner.replay.client import Answer, End
from runner.replay.count import count

NS = 10**9


def event(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more.pop("choice", {})}
    document = {"id": "a", "choices": [choice], "usage": None, **more}
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def counted(packets: list[bytes], *, whole: bool) -> Measurement:
    """One packet an event, or all events in one packet, of which no frame is ever used."""
    parts = packets if whole else [b"".join(packets)]
    answer = Answer(0, 0, NS, 3 * NS, 200, None, End.CLEAN, [(2 * NS, part) for part in parts])
    return count(answer, "r", None, 0).measurement


TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["a", "content", '"', "\\", "\n", "\x7f", "é", "\u2028", "}", "[DONE]", "-"]),
)
DELTAS = st.one_of(
    st.builds(lambda text: event({"content": text}), TEXTS),
    st.builds(lambda text: event({"reasoning": text}), TEXTS),
    st.builds(lambda text: event({"role": text, "content": text}), TEXTS),
    st.builds(lambda text: event({"content": text}, choice={"token_ids": [1, 2]}), TEXTS),
    st.builds(lambda n: event({"content": "a"}, usage={"completion_tokens": n}), st.integers(0, 9)),
    st.builds(lambda text: event({"content": "a"}, choice={"finish_reason": text}), TEXTS),
    st.sampled_from(
        [
            b": alive\n\n",
            b"event: error\n",
            b"data: [DONE]\n\n",
            b'data: {"error": "no"}\n\n',
            event({"content": "a"}).replace(b'"a"}', b'"\xff"}'),
            event({"content": "a"}).replace(b'"a"}', b'"\x01"}'),
            event({"content": "a"}).replace(b'"a"}', b'"a", "content": "b"}'),
            event({"content": "a"})[:-1],
            event({"content": "a"}).replace(b"\n", b"\r\n"),
        ]
    ),
)


@given(st.lists(DELTAS, min_size=1, max_size=30))
def test_frames_change_no_count(packets: list[bytes]) -> None:
    assert counted(packets, whole=True) == counted(packets, whole=False)


def test_every_event_of_a_frame_is_counted_at_its_own_time() -> None:
    texts = ["one", " two", "é", '"', "last"]
    end = event({}, choice={"finish_reason": "stop"})
    packets = [*(event({"content": text}) for text in texts), end]
    stamped = [((place + 2) * NS, packet) for place, packet in enumerate(packets)]
    answer = Answer(0, 0, NS, 9 * NS, 200, None, End.CLEAN, stamped)
    found = count(answer, "r", None, 0).measurement
    assert found.outcome is Outcome.OK
    assert (found.first_token_ns, found.last_token_ns, found.chunks) == (2 * NS, 6 * NS, 5)
    assert list(found.chunk_gaps_us) == [10**6] * 5
    assert list(found.chunk_bytes) == [3, 4, 2, 1, 4]


def test_a_frame_takes_plain_text_only() -> None:
    other_id, frame = frames(event({"content": "a"}), b"a")  # its id is "a" as well
    assert other_id.text(event({"content": "a"}, id="b")) == b"b"
    assert frame.text(event({"content": "b é"})) == "b é".encode()
    for other in ("", '"', "\\", "\n"):
        assert frame.text(event({"content": other})) is None
    assert frame.text(event({"content": "b"}, id="b")) is None
    assert replace(frame, tail=b"").text(event({"content": "b"})) is None
    assert Frame(b"data: ", b"a: ").text(b"data: ") is None
