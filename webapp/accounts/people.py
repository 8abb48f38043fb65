"""The person behind a request, for views that only signed-in people reach."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from webapp.accounts.models import User


def signed_in(request: HttpRequest) -> User:
    """The request's user; LoginRequiredMiddleware has already sent everybody else away."""
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user
