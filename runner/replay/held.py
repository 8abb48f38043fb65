"""Finished answers, kept until the trial's end: as they are, and beyond a limit packed on disk.

Counting an answer takes as long as receiving it did, so it waits; but 100,000 answers must not
make the process grow. The file has no name, so nothing of it outlives the trial.
"""

from __future__ import annotations

import pickle
import tempfile
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import IO

from runner.replay.client import Answer

RAW_LIMIT_BYTES = 64 * 2**20
_BYTES_AROUND_A_PACKET = 120


class HeldAnswers:
    """Add answers while the trial runs; iterate over them once it has ended."""

    def __init__(self) -> None:
        self._raw: list[Answer] = []
        self._raw_bytes = 0
        self._file: IO[bytes] | None = None
        self._full: OSError | None = None

    def add(self, answer: Answer) -> None:
        """Keep ``answer``. Raises OSError where the disk is full."""
        if self._raw_bytes < RAW_LIMIT_BYTES:
            self._raw.append(answer)
            self._raw_bytes += answer.size_bytes + _BYTES_AROUND_A_PACKET * len(answer.packets)
            return
        if self._full is not None:
            raise self._full
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            pickle.dump(_packed(answer), self._file, protocol=5)
        except OSError as error:
            self._full = error
            raise
        answer.packets = []

    def __iter__(self) -> Iterator[Answer]:
        yield from self._raw
        if self._file is None:
            return
        self._file.seek(0)
        while True:
            try:
                yield _unpacked(pickle.load(self._file))  # noqa: S301 - written above
            except (EOFError, pickle.UnpicklingError):
                return  # the end, or the piece for which there was no space any more

    def close(self) -> None:
        """Forget all answers."""
        self._raw.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


def _packed(answer: Answer) -> tuple[Answer, bytes, bytes, bytes]:
    """``answer`` without its packets; their stamps, their sizes, and all their bytes, packed."""
    stamps = array("q", [at_ns for at_ns, _ in answer.packets])
    sizes = array("q", [len(packet) for _, packet in answer.packets])
    body = b"".join(packet for _, packet in answer.packets)
    # Events repeat each other's frame: level 1 makes a twentieth of them, quickly.
    return replace(answer, packets=[]), stamps.tobytes(), sizes.tobytes(), zlib.compress(body, 1)


def _unpacked(packed: tuple[Answer, bytes, bytes, bytes]) -> Answer:
    answer, stamps, sizes, body = packed
    data = zlib.decompress(body)
    lengths = array("q", sizes)
    answer.packets = [
        (at_ns, data[stop - size : stop])
        for at_ns, size, stop in zip(array("q", stamps), lengths, accumulate(lengths), strict=True)
    ]
    return answer
