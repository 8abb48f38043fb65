"""Signing in and out, and the list of workspaces."""

from __future__ import annotations

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from webapp.accounts.backends import sign_in_was_throttled
from webapp.accounts.forms import SignInForm
from webapp.accounts.models import Membership
from webapp.accounts.people import signed_in
from webapp.core.limits import too_many
from webapp.core.throttle import LOGIN_PERSON


class SignIn(LoginView):
    template_name = "accounts/sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        if sign_in_was_throttled(self.request):
            return too_many(self.request, LOGIN_PERSON)
        return super().form_invalid(form)


@require_safe
def workspaces(request: HttpRequest) -> HttpResponse:
    rows = Membership.objects.filter(user=signed_in(request)).select_related("workspace")
    rows = rows.annotate(experiment_count=Count("workspace__experiments"))
    return render(
        request, "accounts/workspaces.html", {"memberships": rows.order_by("workspace__name")}
    )
