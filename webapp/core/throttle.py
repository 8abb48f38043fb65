"""How often something may be tried: a token bucket in Redis per person and per address.

When Redis does not answer, everything is allowed and a line is logged: a limit that is out of
order must not shut people out.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest
from redis.exceptions import RedisError

from webapp.core import broker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limit:
    """``burst`` tries at once, then one more every ``refill_s`` seconds."""

    name: str
    burst: int
    refill_s: float


LOGIN_PERSON = Limit("login-person", 10, 30.0)
LOGIN_ADDRESS = Limit("login-address", 40, 5.0)
UPLOAD = Limit("upload", 20, 30.0)
START = Limit("start", 20, 30.0)
SHARE_VIEW = Limit("share-view", 60, 1.0)

# KEYS[1] bucket; ARGV burst, seconds for one token, tokens to take (negative: give back).
# Returns 1 when they were there. Redis's clock counts, so that all web processes agree.
_TAKE = """
local now = redis.call('TIME')
local seconds = tonumber(now[1]) + tonumber(now[2]) / 1000000
local burst, refill, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local kept = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(kept[1]) or burst, tonumber(kept[2]) or seconds
tokens = math.min(burst, tokens + math.max(0, seconds - at) / refill)
local allowed = 0
if tokens >= wanted then
    tokens = math.min(burst, tokens - wanted)
    allowed = 1
end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', tostring(seconds))
redis.call('EXPIRE', KEYS[1], math.ceil(burst * refill) + 1)
return allowed
"""


def allow(limit: Limit, subject: str) -> bool:
    """Take one token of ``subject`` (an e-mail address, a user's key, a network address)."""
    return _take(limit, subject, 1)


def give_back(limit: Limit, subject: str) -> None:
    """Return the token of a try that turned out well."""
    _take(limit, subject, -1)


def _take(limit: Limit, subject: str, tokens: int) -> bool:
    # Hashed: Redis keeps no e-mail address and no network address.
    digest = hashlib.sha256(f"{settings.SECRET_KEY}:{subject.lower()}".encode()).hexdigest()[:32]
    key = f"draftproof:limit:{limit.name}:{digest}"
    try:
        return bool(broker.client().eval(_TAKE, 1, key, limit.burst, limit.refill_s, tokens))
    except (RedisError, OSError) as error:
        log.warning("limit %s not checked: no Redis (%s)", limit.name, type(error).__name__)
        return True


def client_address(request: HttpRequest) -> str:
    """The sender's network address; behind a trusted proxy the one that the proxy saw."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "") if settings.TRUST_PROXY else ""
    last = str(forwarded).rsplit(",", 1)[-1].strip()
    return last or str(request.META.get("REMOTE_ADDR", "")) or "unknown"


def subject(request: HttpRequest) -> str:
    """Whom a limit counts: the signed-in person, else the network address."""
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        return f"user-{user.pk}"
    return client_address(request)
