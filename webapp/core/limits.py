"""The page for whoever asks too often."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render

from webapp.core import throttle

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def too_many(request: HttpRequest, limit: throttle.Limit) -> HttpResponse:
    response = render(request, "429.html", status=429)
    response["Retry-After"] = str(max(1, round(limit.refill_s)))
    return response


def limited_page(
    limit: throttle.Limit, *, methods: tuple[str, ...] = ("POST",)
) -> Callable[[View[P]], View[P]]:
    """A view that answers with the 429 page when its sender is over ``limit``."""

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            asks = request.method in methods
            if asks and not throttle.allow(limit, throttle.subject(request)):
                return too_many(request, limit)
            return view(request, *args, **kwargs)

        return inner

    return decorate
