"""The entry point of the web process (gunicorn ``webapp.wsgi``)."""

from __future__ import annotations

import os

# Before the settings are read: they give the web process a connection pool and short limits.
os.environ["DRAFTPROOF_PROCESS"] = "web"
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
