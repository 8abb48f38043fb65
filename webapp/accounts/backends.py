"""Signing in with an e-mail address, however it is capitalised."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.http import HttpRequest

from webapp.accounts.models import User


class EmailBackend(ModelBackend):
    """Takes ``email`` or ``username``; an unknown address costs the same time as a wrong password.

    The look-up itself ignores case in ``UserManager.get_by_natural_key``.
    """

    def authenticate(  # type: ignore[override]
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        email: str | None = None,
        **kwargs: Any,
    ) -> User | None:
        found = super().authenticate(
            request, username=(email or username or "").strip(), password=password
        )
        return found if isinstance(found, User) else None
