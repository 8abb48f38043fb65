"""The site's settings for worker processes of the tests: a lost worker is noticed in seconds."""

from webapp.settings import *  # noqa: F403

EXPERIMENT_TIMES = {
    "lease_ttl_s": 2.0,
    "heartbeat_s": 0.3,
    "poll_s": 0.1,
    "write_patience_s": 5.0,
}
