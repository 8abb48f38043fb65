"""A file as lines, in bounded memory: plain or gzip, split on ``\\n`` only.

``str.splitlines`` would also split on U+0085 and U+2028, which occur inside prompts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MIB = 1024 * 1024
_CHUNK = 256 * 1024
_GZIP = b"\x1f\x8b"
_OTHER_FILES = {
    b"PK\x03\x04": "a zip or Excel file",
    b"PAR1": "a Parquet file",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"BZh": "a bzip2 file",
    b"%PDF": "a PDF file",
}


class TrafficError(Exception):
    """The file can't be used. ``reason`` is one sentence without the file's text."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason if line is None else f"line {line}: {reason}")
        self.reason = reason
        self.line = line


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds of one upload; what is over them is refused, never cut silently."""

    max_file_bytes: int = 256 * MIB
    max_text_bytes: int = 256 * MIB
    """After decompression."""
    max_ratio: int = 100
    """Decompressed to compressed size; small files are free up to 1 MiB."""
    max_line_bytes: int = 4 * MIB
    max_rows: int = 100_000
    max_depth: int = 64
    """Nested objects and lists in one row."""


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: bytes | None
    """None: longer than the limit."""


def read_lines(path: Path, limits: ReadLimits) -> Iterator[Line]:
    """Every physical line, without its line end and without a byte order mark."""
    size = path.stat().st_size
    if size > limits.max_file_bytes:
        raise TrafficError(f"the file is larger than {limits.max_file_bytes // MIB} MiB")
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(0)
        for magic, what in _OTHER_FILES.items():
            if head.startswith(magic):
                raise TrafficError(f"this is {what}; upload UTF-8 text with one JSON object a line")
        gzipped = head.startswith(_GZIP)
        yield from _split(_gunzip(file, size, limits) if gzipped else _plain(file), limits)


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


class _EndsEarly(Exception):
    pass


def _gunzip(file: BinaryIO, size: int, limits: ReadLimits) -> Iterator[bytes]:
    allowed = max(limits.max_ratio * size, MIB)
    produced = 0
    stream = zlib.decompressobj(wbits=31)
    pending = b""
    while True:
        pending = pending or file.read(_CHUNK)
        if not pending:
            if not stream.eof:
                raise _EndsEarly
            return
        if stream.eof:  # a further gzip member, as written by appending or by parallel tools
            if not pending.strip(b"\0"):
                pending = b""
                continue
            stream = zlib.decompressobj(wbits=31)
        try:
            out = stream.decompress(pending, _CHUNK)
        except zlib.error:
            raise TrafficError("the compressed file is damaged") from None
        pending = stream.unused_data if stream.eof else stream.unconsumed_tail
        produced += len(out)
        if produced > allowed:
            raise TrafficError(
                f"the file unpacks to over {limits.max_ratio} times its size; upload it unpacked"
            )
        if out:
            yield out


def _split(chunks: Iterator[bytes], limits: ReadLimits) -> Iterator[Line]:
    number = 0
    total = 0
    kept = bytearray()
    too_long = False
    try:
        for chunk in chunks:
            total += len(chunk)
            if total > limits.max_text_bytes:
                raise TrafficError(f"the text is larger than {limits.max_text_bytes // MIB} MiB")
            *whole, rest = chunk.split(b"\n")
            for piece in whole:
                number += 1
                long = too_long or len(kept) + len(piece) > limits.max_line_bytes
                yield Line(number, None if long else _clean(number, bytes(kept) + piece))
                kept.clear()
                too_long = False
            too_long = too_long or len(kept) + len(rest) > limits.max_line_bytes
            if too_long:
                kept.clear()
            else:
                kept += rest
    except _EndsEarly:
        raise TrafficError(
            f"the compressed file ends early ({number} whole lines could be read)"
        ) from None
    if kept or too_long:
        yield Line(number + 1, None if too_long else _clean(number + 1, bytes(kept)))


def _clean(number: int, text: bytes) -> bytes:
    if number == 1:
        text = text.removeprefix(b"\xef\xbb\xbf")
    return text.removesuffix(b"\r")
