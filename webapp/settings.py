"""Django's settings. What can differ between installations comes from ``webapp.env``, only.

There is one file for development, tests and production: a plain start serves this machine over
http, and an https ``DRAFTPROOF_BASE_URL`` makes it a site for others with everything that needs.
"""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import urlsplit

from webapp import env

BASE_DIR = env.ROOT
VAR_DIR = env.VAR_DIR.get()
DEBUG = env.DEBUG.get()
SECRET_KEY = env.secret_key()
BASE_URL = env.BASE_URL.get()
HTTPS = BASE_URL.startswith("https://")
PROCESS = env.PROCESS.get()
DATABASE_URL, REDIS_URL = env.service_urls()

# The loopback names are for health checks, which ask from inside.
ALLOWED_HOSTS = sorted(
    {urlsplit(BASE_URL).hostname or "", *env.ALLOWED_HOSTS.get(), *env.LOOPBACK_HOSTS}
)
CSRF_TRUSTED_ORIGINS = sorted({BASE_URL, *env.CSRF_ORIGINS.get()})
TRUST_PROXY = env.TRUST_PROXY.get()
if TRUST_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

INSTALLED_APPS = [
    "webapp.core",
    "webapp.accounts",
    "webapp.samples",
    "webapp.fleet",
    "webapp.experiments",
    "webapp.comparisons",
    "webapp.estimates",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "csp",
    "django_htmx",
    "template_partials",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "webapp.core.middleware.PrivatePages",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    # Every view is for signed-in people unless it says ``login_not_required``. Before the CSRF
    # check, which reads the body: nobody else's upload is taken in.
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "webapp.urls"
WSGI_APPLICATION = "webapp.wsgi.application"
APPEND_SLASH = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

# --- people -----------------------------------------------------------------------------------
AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["webapp.accounts.backends.EmailBackend"]
# scrypt fills memory as well as time, and needs nothing beyond the standard library.
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.ScryptPasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {
        "NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator",
        "OPTIONS": {"user_attributes": ("email", "name")},
    },
]
LOGIN_URL = "/sign-in"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/sign-in"

SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
# Browsers refuse a ``__Secure-`` cookie that plain http tries to set over it.
SESSION_COOKIE_NAME = "__Secure-sessionid" if HTTPS else "draftproof_sessionid"
CSRF_COOKIE_NAME = "__Secure-csrftoken" if HTTPS else "draftproof_csrftoken"
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"

# --- what browsers are told -------------------------------------------------------------------
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:", "blob:"],
        "connect-src": ["'self'"],
        "font-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SECURE_SSL_REDIRECT = HTTPS
# Health checks ask over plain http from inside.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$"]
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SILENCED_SYSTEM_CHECKS = [
    # include_subdomains and preload speak for the whole domain, of which this site is one host;
    # that is for whoever owns the domain to say at its proxy.
    "security.W005",
    "security.W021",
]

# --- database ---------------------------------------------------------------------------------
# No view may hold a thread for long; a worker copies and aggregates; a migration takes its time.
_STATEMENT_TIMEOUT_MS = {"web": 15_000, "worker": 120_000, "manage": 0}
_database: dict[str, Any] = env.database_settings(DATABASE_URL)
_database["OPTIONS"] |= {
    "application_name": f"draftproof-{PROCESS}",
    "options": (
        f"-c statement_timeout={_STATEMENT_TIMEOUT_MS[PROCESS]}"
        " -c lock_timeout=5000 -c idle_in_transaction_session_timeout=60000"
    ),
}
_database["OPTIONS"].setdefault("connect_timeout", 5)
if PROCESS == "web":
    # Threads share few connections; CONN_MAX_AGE must be 0 with a pool. Workers have no pool: a
    # pool in each prefork child buys nothing.
    _database["OPTIONS"]["pool"] = {
        "min_size": 1,
        "max_size": 8,
        "timeout": 5,
        "max_lifetime": 1800,
    }
_database |= {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}
DATABASES = {"default": _database}

# --- files ------------------------------------------------------------------------------------
STATIC_URL = "/static/"
STATIC_ROOT = VAR_DIR / "static"
# Whitenoise warns of a missing folder; a read-only file system has it collected beforehand.
with contextlib.suppress(OSError):
    STATIC_ROOT.mkdir(parents=True, exist_ok=True)
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "webapp.core.static.PlotlyFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "webapp.core.static.HashedStaticStorage"},
}
# Before ``collectstatic`` has run (tests, a first start) files come from where they lie.
WHITENOISE_USE_FINDERS = DEBUG or not (STATIC_ROOT / "staticfiles.json").exists()
WHITENOISE_AUTOREFRESH = DEBUG
# Uploaded traffic. No address serves this folder.
MEDIA_ROOT = VAR_DIR / "media"
MEDIA_URL = "/never-served/"
FILE_UPLOAD_PERMISSIONS = 0o600
FILE_UPLOAD_DIRECTORY_PERMISSIONS = 0o700
UPLOAD_MAX_BYTES = env.UPLOAD_MAX_MB.get() * 1024 * 1024
# The first handler stops an upload in the middle; Django's own limits do not bound files.
FILE_UPLOAD_HANDLERS = [
    "webapp.core.uploads.StopWhenTooLarge",
    "django.core.files.uploadhandler.TemporaryFileUploadHandler",
]
# Forms without files are small.
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 500
DATA_UPLOAD_MAX_NUMBER_FILES = 2

# --- the rest ---------------------------------------------------------------------------------
LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"secrets": {"()": "webapp.core.logs.SecretFilter"}},
    "formatters": {
        "plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        "json": {"()": "webapp.core.logs.JsonFormatter"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": env.LOG_FORMAT.get(),
            "filters": ["secrets"],
        }
    },
    "root": {"handlers": ["stderr"], "level": env.LOG_LEVEL.get()},
    "loggers": {
        "django": {"handlers": [], "propagate": True},
        # It would write the full address of a refused host with its query.
        "django.security.DisallowedHost": {"handlers": [], "propagate": False},
        # One line a message at INFO; a task's own lines say more.
        "celery.worker.strategy": {"level": "WARNING"},
    },
}
