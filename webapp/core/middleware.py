"""Headers that every page carries."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

PERMISSIONS_POLICY = ", ".join(
    f"{feature}=()"
    for feature in ("camera", "geolocation", "microphone", "payment", "usb", "browsing-topics")
)


class PrivatePages:
    """No page of a signed-in person is kept by a cache; no page may use the device.

    A view that sets Cache-Control itself keeps its own. Static files are answered further in, by
    whitenoise, with their own header.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Cache-Control", "private, no-store")
        response.headers.setdefault("Permissions-Policy", PERMISSIONS_POLICY)
        return response
