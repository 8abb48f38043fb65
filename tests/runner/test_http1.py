"""Where one HTTP/1.1 answer ends, whatever the packets look like."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.replay.http1 import MAX_HEAD_BYTES, FramingError, ResponseReader

BODY = b"data: 10\r\n\r\n" + b"x" * 300 + b"\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nContent-Length: 3\r\n\r\n"
    b"c;name=value\r\n%b\r\n%X\r\n%b\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n"
    % (BODY[:12], len(BODY) - 12, BODY[12:])
)
COUNTED = b"HTTP/1.1 404 \r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
OPEN = b"HTTP/1.0 200 OK\r\n\r\n" + BODY


def read(packets: list[bytes]) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader()
    return reader, b"".join([reader.feed(packet) for packet in packets])


@given(
    st.sampled_from([(CHUNKED, 200), (INTERIM + CHUNKED, 200), (COUNTED, 404)]),
    st.sets(st.integers(0, len(INTERIM + CHUNKED))),
)
def test_packet_borders_change_nothing(answer: tuple[bytes, int], cuts: set[int]) -> None:
    data, status = answer
    borders = sorted({0, len(data)} | {cut for cut in cuts if cut < len(data)})
    reader, body = read([data[a:b] for a, b in pairwise(borders)])
    assert (reader.status, body, reader.ended, reader.keep_alive) == (status, BODY, True, True)


@pytest.mark.parametrize("data", [CHUNKED, COUNTED])
def test_every_proper_beginning_is_unfinished(data: bytes) -> None:
    for end in range(len(data)):
        reader, _ = read([data[:end]])
        assert not reader.ended
        assert not reader.closed()


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader, body = read([OPEN])
    assert (body, reader.ended, reader.keep_alive) == (BODY, False, False)
    assert reader.closed()


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"],
)
def test_no_body(head: bytes) -> None:
    reader, body = read([head])
    assert (body, reader.ended, reader.keep_alive) == (b"", True, True)


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + b"more",
        COUNTED + b"more",
        COUNTED.replace(b"404 ", b"404 \r\nConnection: Close"),
        COUNTED.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
def test_a_connection_that_cannot_be_used_again(data: bytes) -> None:
    reader, body = read([data])
    assert (body, reader.ended, reader.keep_alive) == (BODY, True, False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-server\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES,
    ],
)
def test_what_is_no_http(data: bytes) -> None:
    with pytest.raises(FramingError):
        read([data])
