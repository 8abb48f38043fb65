"""Signing in with an e-mail address, however it is capitalised, and not too often."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from webapp.accounts.models import User
from webapp.core import throttle

_THROTTLED = "draftproof_sign_in_throttled"


class EmailBackend(ModelBackend):
    """Takes ``email`` or ``username``; an unknown address costs the same time as a wrong password.

    The look-up itself ignores case in ``UserManager.get_by_natural_key``. Tries are counted per
    person and per network address here, where no view can forget it; a good one is not counted.
    """

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        email: str | None = None,
        **kwargs: Any,
    ) -> User | None:
        address = (email or username or "").strip()
        if request is not None and not _may_try(request, address):
            request.META[_THROTTLED] = True
            raise PermissionDenied
        found = super().authenticate(request, username=address, password=password)
        if not isinstance(found, User):
            return None
        if request is not None:
            throttle.give_back(throttle.LOGIN_PERSON, address)
            throttle.give_back(throttle.LOGIN_ADDRESS, throttle.client_address(request))
        return found


def sign_in_was_throttled(request: HttpRequest) -> bool:
    """Whether ``authenticate`` said no to this request for too many tries."""
    return bool(request.META.get(_THROTTLED))


def _may_try(request: HttpRequest, address: str) -> bool:
    return throttle.allow(
        throttle.LOGIN_ADDRESS, throttle.client_address(request)
    ) and throttle.allow(throttle.LOGIN_PERSON, address)
