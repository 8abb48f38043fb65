"""Log lines without secrets, plain or as JSON."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime

_PATTERNS = (
    # user:password@ in an address
    (re.compile(r"(\w[\w+.-]*://)[^/\s:@]*:[^/\s@]+@"), r"\1***@"),
    # a share link's token
    (re.compile(r"(/s/)[A-Za-z0-9_-]{8,}"), r"\1***"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 ***"),
    (
        re.compile(
            r"(?i)((?:password|passwd|secret|token|api[_-]?key|authorization|cookie|sessionid)"
            r"[\"']?\s*[=:]\s*)(?!\*\*\*)(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"
        ),
        r"\1***",
    ),
)


def scrub(text: str) -> str:
    """The text with passwords, tokens and keys replaced by ``***``."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


class SecretFilter(logging.Filter):
    """Scrubs the finished message of every line, its arguments and its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = scrub(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = scrub(record.exc_text)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, tz=UTC)
        line = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_text:
            line["traceback"] = record.exc_text
        elif record.exc_info:
            line["traceback"] = scrub(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)
