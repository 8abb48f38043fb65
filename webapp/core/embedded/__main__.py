"""``python -m webapp.core.embedded start|stop|status|urls|remove``."""

from __future__ import annotations

import argparse
import sys

from webapp.core import embedded


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m webapp.core.embedded",
        description="The PostgreSQL and Valkey under var/services/. `urls` prints their addresses "
        "with passwords; `remove` deletes their data.",
    )
    parser.add_argument("action", choices=["start", "stop", "status", "urls", "remove"])
    action = parser.parse_args(arguments).action
    try:
        return _act(action)
    except embedded.EmbeddedError as error:
        print(error, file=sys.stderr)
        return 1


def _act(action: str) -> int:
    if action == "urls":
        found = embedded.urls()
        print(found.database_url, found.redis_url, sep="\n")
        return 0
    if action == "start":
        embedded.start()
    elif action == "stop":
        embedded.stop()
    elif action == "remove":
        embedded.remove()
    for service in embedded.status():
        where = f"running, {embedded.HOST}:{service.port}, process {service.pid}"
        print(f"{service.name}: {'stopped' if service.pid is None else where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
