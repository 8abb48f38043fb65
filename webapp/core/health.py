"""What a process needs to work: its database with every migration, and its broker."""

from __future__ import annotations

import logging

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from webapp.core import broker

log = logging.getLogger(__name__)
_migrated = False


def checks() -> dict[str, str]:
    """{part: "ok" or what is wrong}. Holds no address and no error text: anybody may ask."""
    found = {"database": _database(), "broker": "ok" if broker.answers() else "unreachable"}
    if found["database"] == "ok":
        found["migrations"] = _migrations()
    return found


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Exception as error:  # the pool raises errors of its own
        log.warning("readyz: the database does not answer (%s)", type(error).__name__)
        return "unreachable"
    return "ok"


def _migrations() -> str:
    # Reading the migration files costs 50 ms and more; what was applied stays so while we run.
    global _migrated
    if not _migrated:
        executor = MigrationExecutor(connection)
        _migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
    return "ok" if _migrated else "waiting"
