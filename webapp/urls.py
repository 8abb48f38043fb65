"""Addresses. Each app brings its own ``urls``."""

from __future__ import annotations

from importlib.util import find_spec

from django.urls import URLPattern, URLResolver, include, path

_APPS = ("accounts", "samples", "fleet", "experiments", "comparisons", "estimates", "pages")

urlpatterns: list[URLPattern | URLResolver] = [path("", include("webapp.core.urls"))]
urlpatterns += [
    path("", include(f"webapp.{app}.urls"))
    for app in _APPS
    if find_spec(f"webapp.{app}.urls") is not None
]
