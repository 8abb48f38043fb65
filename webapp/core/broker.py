"""The Redis connection that rate limits and health checks share; short limits, no retries."""

from __future__ import annotations

from functools import cache

from django.conf import settings
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry


@cache
def client(url: str | None = None) -> Redis:
    """A client with a pool of its own; makes no connection yet."""
    return Redis.from_url(
        url or settings.REDIS_URL,
        socket_connect_timeout=0.5,
        socket_timeout=1.0,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )


def answers() -> bool:
    try:
        return bool(client().ping())
    except (RedisError, OSError):
        return False
