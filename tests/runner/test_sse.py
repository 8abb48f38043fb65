"""The event-stream rule, byte by byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.replay.sse import Decoder, Event

STREAM = (
    "\ufeffdata: first\n\n: a comment\n\nevent: note\r\ndata:no space\r\ndata:  two spaces\r\n\r\n"
    "data: cr\rdata: only\r\rid: 7\nretry: 10\n\ndata: emoji \U0001f642 and \u2028 inside\n\n"
    "data\n\ndata: [DONE]\n\n"
).encode()
EVENTS = [
    ("first", ""),
    ("no space\n two spaces", "note"),
    ("cr\nonly", ""),
    ("emoji \U0001f642 and \u2028 inside", ""),
    ("", ""),
    ("[DONE]", ""),
]


def decode(packets: list[bytes], *, clean: bool = True) -> list[Event]:
    decoder = Decoder()
    events = [
        event for at_ns, packet in enumerate(packets) for event in decoder.feed(packet, at_ns)
    ]
    return events + (decoder.finish(len(packets) - 1) if clean else [])


def contents(packets: list[bytes], *, clean: bool = True) -> list[tuple[str, str]]:
    return [(event.data, event.name) for event in decode(packets, clean=clean)]


def test_whole_stream_in_one_packet() -> None:
    assert contents([STREAM]) == EVENTS


def test_every_byte_in_a_packet_of_its_own() -> None:
    assert contents([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


@given(st.sets(st.integers(0, len(STREAM))))
def test_packet_borders_change_nothing(cuts: set[int]) -> None:
    borders = sorted({0, len(STREAM)} | cuts)
    assert contents([STREAM[a:b] for a, b in pairwise(borders)]) == EVENTS


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(end: str) -> None:
    stream = f"data: a{end}data: b{end}{end}data: c{end}{end}".encode()
    assert contents([stream]) == [("a\nb", ""), ("c", "")]


def test_an_event_is_dated_by_the_packet_that_ended_its_last_data_line() -> None:
    packets = [b"data: ", b"x\n", b"\n", b"data: y\n\n"]
    assert [(event.data, event.arrived_ns) for event in decode(packets)] == [("x", 1), ("y", 3)]


def test_last_event_without_a_blank_line() -> None:
    assert contents([b"data: a\n\ndata: b"]) == [("a", ""), ("b", "")]
    assert contents([b"data: a\n\ndata: b"], clean=False) == [("a", "")]


def test_long_line_in_many_packets() -> None:
    text = "word " * 60_000
    stream = f"data: {text}\n\n".encode()
    packets = [stream[i : i + 1400] for i in range(0, len(stream), 1400)]
    assert contents(packets) == [(text, "")]


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_are_read_without_a_fault(packets: list[bytes]) -> None:
    joined = contents([b"".join(packets)])
    assert contents(packets) == joined
