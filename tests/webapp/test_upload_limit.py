"""An upload that is too large stops in the middle, over real requests."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from django.core.files.uploadedfile import UploadedFile
from django.core.handlers.wsgi import WSGIRequest
from django.test import RequestFactory
from pytest_django import Settings

from webapp.core.uploads import upload_was_too_large


class _Body(io.RawIOBase):
    """A multipart body that is made while it is read."""

    def __init__(self, size: int) -> None:
        head = (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n"
        )
        self.length = len(head) + size + len(b"\r\n--b--\r\n")
        self._pieces: Iterator[bytes] = iter(
            (head, *([b"x" * 65536] * (size // 65536)), b"\r\n--b--\r\n")
        )
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def _request(rf: RequestFactory, size: int) -> WSGIRequest:
    body = _Body(size)
    own = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": "multipart/form-data; boundary=b",
        "CONTENT_LENGTH": str(body.length),
        "wsgi.input": body,
    }
    return WSGIRequest({**rf.request().environ, **own})


def test_a_file_within_the_limit_arrives(rf: RequestFactory, settings: Settings) -> None:
    settings.UPLOAD_MAX_BYTES = 1024 * 1024
    request = _request(rf, 1024 * 1024)
    file = request.FILES["file"]
    assert isinstance(file, UploadedFile)
    assert file.size == 1024 * 1024
    assert not upload_was_too_large(request)
    request.close()


@pytest.mark.parametrize("size_mib", [3, 20])
def test_a_file_over_the_limit_is_dropped(
    rf: RequestFactory, settings: Settings, size_mib: int
) -> None:
    settings.UPLOAD_MAX_BYTES = 1024 * 1024
    request = _request(rf, size_mib * 1024 * 1024)
    assert "file" not in request.FILES
    assert upload_was_too_large(request)
    read_to_the_end = not request.environ["wsgi.input"].read(1)
    assert read_to_the_end is (size_mib <= 4)
    request.close()
