"""Server-sent events from raw bytes, with the arrival time of each event.

Follows the WHATWG event-stream rule (https://html.spec.whatwg.org/multipage/server-sent-events.html):
lines end with LF, CRLF or CR and with nothing else (U+2028 inside a text is text), one optional
space after the colon, several ``data`` lines are joined by LF, lines that begin with a colon are
comments, a byte order mark at the start is dropped. Works on bytes, so that a character cut
across packets is whole again before it is decoded.

Where we differ: the standard throws away a last event that no blank line ended. Servers do end
their stream so, and a cleanly ended body lost nothing, so ``Decoder.finish`` gives that event
back. A caller whose connection was cut must not call it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``arrived_ns`` is when the packet came that completed its last data line."""

    arrived_ns: int
    data: str
    name: str = ""


class Decoder:
    """Feed it packets in order; each call returns the events that the packet completed."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer known to hold no line end: keeps long lines linear
        self._at_start = True
        self._skip_line_feed = False
        self._data: list[bytes] = []
        self._name = ""
        self._arrived_ns = 0

    @property
    def between_events(self) -> bool:
        """Nothing is left of what was fed, and nothing of the next packet belongs to it."""
        return not (
            self._buffer or self._data or self._name or self._skip_line_feed or self._at_start
        )

    def feed(self, packet: bytes, arrived_ns: int) -> list[Event]:
        """Events completed by this packet. ``arrived_ns`` is the packet's time stamp."""
        self._buffer += packet
        if not self._ready():
            return []
        events: list[Event] = []
        start = 0
        while match := _LINE_END.search(self._buffer, max(start, self._searched)):
            # A CR ends the line at once; an LF after it, even in the next packet, belongs to it.
            self._skip_line_feed = match.group() == b"\r" and match.end() == len(self._buffer)
            self._take_line(bytes(self._buffer[start : match.start()]), arrived_ns, events)
            start = match.end()
        del self._buffer[:start]
        self._searched = len(self._buffer)
        return events

    def finish(self, arrived_ns: int) -> list[Event]:
        """The last event of a cleanly ended stream, if no blank line ended it."""
        events: list[Event] = []
        if self._buffer:
            self._take_line(bytes(self._buffer), arrived_ns, events)
            self._buffer.clear()
        self._dispatch(events)
        return events

    def _ready(self) -> bool:
        """Drop the byte order mark and the second half of a CRLF; False: wait for more bytes."""
        if self._skip_line_feed and self._buffer:
            if self._buffer[0] == 0x0A:
                del self._buffer[0]
            self._skip_line_feed = False
        if self._at_start:
            if len(self._buffer) < len(_BOM) and _BOM.startswith(bytes(self._buffer)):
                return False
            if self._buffer.startswith(_BOM):
                del self._buffer[: len(_BOM)]
            self._at_start = False
        return True

    def _take_line(self, line: bytes, arrived_ns: int, events: list[Event]) -> None:
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._arrived_ns = arrived_ns
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")

    def _dispatch(self, events: list[Event]) -> None:
        if self._data:
            text = b"\n".join(self._data).decode("utf-8", "replace")
            events.append(Event(self._arrived_ns, text, self._name))
        self._data.clear()
        self._name = ""
