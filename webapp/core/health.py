"""What a process needs to work: its database with every migration, and its broker."""

from __future__ import annotations

import logging

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from webapp.core import broker

log = logging.getLogger(__name__)


def checks() -> dict[str, str]:
    """{part: "ok" or what is wrong}. Holds no address and no error text: anybody may ask."""
    found = {"database": _database(), "broker": _broker()}
    if found["database"] == "ok":
        found["migrations"] = _migrations()
    return found


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Exception as error:  # a full pool raises its own kind
        log.warning("readyz: the database does not answer (%s)", type(error).__name__)
        return "unreachable"
    return "ok"


def _broker() -> str:
    return "ok" if broker.answers() else "unreachable"


def _migrations() -> str:
    try:
        executor = MigrationExecutor(connection)
        waiting = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError:
        return "unknown"
    return "waiting" if waiting else "ok"
