"""Stops an upload in the middle once it is larger than allowed."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.files.uploadhandler import FileUploadHandler, SkipFile, StopUpload

TOO_LARGE = "draftproof_upload_too_large"


class StopWhenTooLarge(FileUploadHandler):
    """Counts a file's bytes as they arrive and drops the file when there are too many.

    The rest of the body is read and thrown away, never stored, so that the sender gets a page
    with a sentence and not a reset connection; a body of over four times the limit is not read
    to its end. ``upload_was_too_large`` tells the form.
    """

    def handle_raw_input(
        self, input_data: Any, META: dict[str, Any], content_length: int, *args: Any, **kwargs: Any
    ) -> None:
        self._announced = content_length

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self._seen = 0

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes:
        self._seen += len(raw_data)
        if self._seen > settings.UPLOAD_MAX_BYTES:
            if self.request is not None:
                self.request.META[TOO_LARGE] = True
            if self._announced > 4 * settings.UPLOAD_MAX_BYTES:
                raise StopUpload(connection_reset=True)
            raise SkipFile
        return raw_data

    def file_complete(self, file_size: int) -> None:
        # Another handler keeps the file.
        return None


def upload_was_too_large(request: Any) -> bool:
    """Whether a file of this request was dropped for its size. Read ``request.FILES`` first."""
    return bool(request.META.get(TOO_LARGE))
