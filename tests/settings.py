"""The site's own settings, on embedded services where no others are given.

pytest-django reads the settings before any conftest, so the services are started here.
"""

import os

if not (os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL")):
    from webapp.core import embedded

    _urls = embedded.start()
    os.environ.setdefault("DATABASE_URL", _urls.database_url)
    # Database 1: a demo that runs from the same folder uses 0, and must not get our messages.
    os.environ.setdefault("REDIS_URL", _urls.redis_url.rsplit("/", 1)[0] + "/1")

# Tests that run side by side (in processes gw0, gw1, ...) must not get each other's messages.
if _worker := os.environ.get("PYTEST_XDIST_WORKER"):
    _number = 2 + int(_worker.removeprefix("gw"))
    os.environ["REDIS_URL"] = os.environ["REDIS_URL"].rpartition("/")[0] + f"/{_number}"

from webapp.settings import *  # noqa: F403

# What protects real passwords from guessing costs a tenth of a second for each sign-in of a test.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Static files as they lie in the tree, whatever ``collectstatic`` left under var/ some time ago.
STORAGES["staticfiles"] = {  # noqa: F405
    "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
}
WHITENOISE_USE_FINDERS = True
