"""One start of vLLM's OpenAI-compatible server, in its own environment and process group."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.arms import SERVED_NAME, engine_arguments, is_path, validate_arm
from runner.engines.base import Endpoint, EngineError, EngineRefused, EngineStopped
from runner.engines.install import detect_kind, engine_python
from runner.engines.places import compile_cache_dir
from runner.engines.process import ChildProcess, free_port, port_is_free
from runner.engines.vllm_log import (
    cache_config,
    effective_settings,
    explain_failure,
    scrub,
)
from runner.plan import Arm, Target

START_LIMIT_S = 900.0
"""From launch to the first completion. Large models load for minutes."""
PORT_TRIES = 3
_POLL_S = 0.2
_RUNNER_PIN = "VLLM_USE_V2_MODEL_RUNNER"
_HTTP_LIMIT_S = 10.0
_FIRST_ANSWER_LIMIT_S = 180.0

# Repeats itself, so that speculation drafts and verifies (and compiles what it compiles late)
# before anything is measured; shares no beginning with any traffic, so that no cached prefix is
# left behind that a request could find.
READINESS_PROMPT = "zq ready, zq steady, zq ready, zq steady, zq ready, zq"
_READINESS_TOKENS = 8

# Of our own environment an engine gets what finds programs, accelerators, proxies and hubs, and no
# secret of the site (DATABASE_URL, keys).
_PASSED_ON = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "HF_HOME", "HF_TOKEN", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "XDG_CACHE_HOME",
    "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_ATTENTION_BACKEND", "VLLM_USE_V2_MODEL_RUNNER",
})  # fmt: skip
_RECORDED = (
    "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_USE_V2_MODEL_RUNNER",
    "HF_HUB_OFFLINE", "LD_PRELOAD", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


class VllmProcess:
    """Implements ``runner.engines.base.Engine``. The log is ``workdir/engine.log``.

    ``port`` is for callers that need a certain one; by default a free one is chosen, and another
    when it is lost to somebody before the engine took it.
    """

    def __init__(
        self,
        target: Target,
        arm: Arm,
        workdir: Path,
        *,
        port: int | None = None,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._target = target
        self._arm = arm
        self._log_path = workdir / "engine.log"
        self._fixed_port = port
        self._port = port or 0
        self._start_limit_s = start_limit_s
        self._key = secrets.token_urlsafe(24)
        self._child: ChildProcess | None = None
        self._scratch: Path | None = None
        self._python: Path | None = None
        self._arguments: list[str] = []
        self._environment: dict[str, str] = {}
        self._version: str | None = None

    # --- the protocol -------------------------------------------------------------------------
    def start(self, should_stop: Callable[[], bool]) -> Endpoint:
        self._check_before()
        self._python = engine_python()
        deadline = time.monotonic() + self._start_limit_s
        try:
            for attempt in range(1, PORT_TRIES + 1):
                try:
                    self._launch()
                    self._await_ready(deadline, should_stop)
                    break
                except EngineError as error:
                    lost = error.code == "port_in_use" and self._fixed_port is None
                    if not lost or attempt == PORT_TRIES:
                        raise
                    self.stop()
        except BaseException:
            self.stop()
            raise
        return Endpoint(f"http://127.0.0.1:{self._port}", SERVED_NAME, self._key)

    def alive(self) -> bool:
        """Whether the server still runs; ``log_tail`` says why not."""
        return self._child is not None and self._child.alive()

    def metrics_text(self) -> str:
        try:
            status, text = self._request("GET", "/metrics")
        except (OSError, http.client.HTTPException):
            return ""
        return text if status == http.HTTPStatus.OK else ""

    def log_tail(self, lines: int = 40) -> list[str]:
        tail = self._child.log_tail(lines) if self._child else []
        return [self._scrubbed(line) for line in tail]

    def fingerprint(self) -> dict[str, Any]:
        """As the protocol says. Values that the engine does not tell are None."""
        settings = effective_settings(self._log_text())
        cache = cache_config(self.metrics_text())
        blocks = cache.get("num_gpu_blocks", "")
        if settings["runner"] is None and self._environment.get(_RUNNER_PIN) == "0":
            settings["runner"] = "V1"  # pinned by us: the log tells only of a choice of its own
        return {
            "engine": "vllm",
            "engine_version": self._version,
            "engine_python": str(self._python),
            "model": self._target.model,
            "model_revision": _model_revision(self._target.model),
            "method": self._arm.method,
            "arguments": [word for word in self._arguments if not word.startswith("--port=")],
            "environment": {k: self._environment[k] for k in _RECORDED if k in self._environment},
            "effective": {
                **settings,
                "kv_cache_blocks": int(blocks) if blocks.isdigit() else None,
                "kv_block_size": cache.get("block_size"),
            },
        }

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    # --- for tests and callers that look closer ------------------------------------------------
    @property
    def pid(self) -> int | None:
        """The server's own process."""
        return self._child.pid if self._child else None

    @property
    def group(self) -> int | None:
        """The process group of the server and all that it started."""
        return self._child.group if self._child else None

    # --- starting ------------------------------------------------------------------------------
    def _check_before(self) -> None:
        """What can be said without waiting half a minute for the engine to say it."""
        problems = validate_arm(self._arm)
        if problems:
            raise EngineRefused("bad_arm", problems[0])
        names = [("model", self._target.model)]
        if self._arm.method == "draft_model":
            names.append(("draft model", str(self._arm.parameters.get("model", ""))))
        for role, name in names:
            if is_path(name) and not (Path(name).expanduser() / "config.json").is_file():
                known = Path(name).expanduser().is_dir()
                what = "has no config.json" if known else "does not exist"
                raise EngineError(
                    f"{role.replace(' ', '_')}_missing",
                    f"The folder of the {role} ({name}) {what}. "
                    "Name a folder with a model in the Hugging Face format.",
                )
        if self._fixed_port is not None and not port_is_free(self._fixed_port):
            raise EngineError(
                "port_in_use",
                f"Port {self._fixed_port} is in use by another program; free it or name another.",
            )

    def _launch(self) -> None:
        assert self._python is not None
        self._port = self._fixed_port or free_port()
        target, arm = _from_anywhere(self._target, self._arm)
        try:
            self._arguments = engine_arguments(target, arm, port=self._port)
        except ValueError as error:
            raise EngineRefused("bad_target", str(error)) from None
        self._scratch = Path(tempfile.mkdtemp(prefix="draftproof-"))
        self._environment = engine_environment(target, arm, self._key, self._scratch)
        # Not `vllm serve`: the console script of vllm-cpu looks for a package named vllm and dies.
        module = "vllm.entrypoints.openai.api_server"
        self._child = ChildProcess(
            [str(self._python), "-m", module, *self._arguments],
            log_path=self._log_path,
            env=self._environment,
            cwd=self._scratch,
        )

    def _await_ready(self, deadline: float, should_stop: Callable[[], bool]) -> None:
        """Until /health answers and then a real completion comes back."""
        while not self._healthy():
            if should_stop():
                raise EngineStopped
            if not self.alive():
                raise self._failure()
            if time.monotonic() > deadline:
                raise EngineError(
                    "start_timeout",
                    f"The engine was not ready within {self._start_limit_s:.0f} seconds; its last "
                    "log lines show how far it came.",
                    self.log_tail(),
                )
            time.sleep(_POLL_S)
        self._first_completion()
        self._version = self._told_version()

    def _healthy(self) -> bool:
        try:
            return self._request("GET", "/health")[0] == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def _first_completion(self) -> None:
        """A server can be healthy and still die at its first token."""
        body = {
            "model": SERVED_NAME,
            "prompt": READINESS_PROMPT,
            "max_tokens": _READINESS_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            status, text = self._request("POST", "/v1/completions", body, _FIRST_ANSWER_LIMIT_S)
            tokens = json.loads(text)["usage"]["completion_tokens"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            status, tokens = None, 0
        if tokens:
            return
        time.sleep(1.0)  # a dying engine writes its reason after the connection broke
        if not self.alive():
            raise self._failure()
        answered = "no answer" if status is None else f"HTTP {status}"
        raise EngineError(
            "no_completion",
            f"The engine started but its first completion failed ({answered}).",
            self.log_tail(),
        )

    def _failure(self) -> EngineError:
        lines = [self._scrubbed(line) for line in self._log_text().splitlines()]
        found = explain_failure(lines, self._child.returncode if self._child else None)
        kind = EngineRefused if found.refused else EngineError
        return kind(found.code, found.reason, self.log_tail())

    def _told_version(self) -> str | None:
        try:
            told = json.loads(self._request("GET", "/version")[1])["version"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return None
        return str(told)

    # --- small things ----------------------------------------------------------------------------
    def _scrubbed(self, line: str) -> str:
        return scrub(line, (self._key, self._environment.get("HF_TOKEN", "")))

    def _log_text(self) -> str:
        try:
            return self._log_path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        limit_s: float = _HTTP_LIMIT_S,
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=limit_s)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", errors="replace")
        finally:
            connection.close()


def _from_anywhere(target: Target, arm: Arm) -> tuple[Target, Arm]:
    """Local folders by their full address: the engine runs in a folder of its own."""
    parameters = dict(arm.parameters)
    if arm.method == "draft_model":
        parameters["model"] = _full(str(parameters["model"]))
    return replace(target, model=_full(target.model)), replace(arm, parameters=parameters)


def _full(name: str) -> str:
    return str(Path(name).expanduser().absolute()) if is_path(name) else name


def engine_environment(target: Target, arm: Arm, key: str, scratch: Path) -> dict[str, str]:
    """The environment of one start: chosen, not inherited, so that two starts are alike."""
    environment = {k: v for k, v in os.environ.items() if k in _PASSED_ON}
    environment |= {
        "VLLM_API_KEY": key,  # by environment: command lines are readable by every user
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(compile_cache_dir()),  # a second start finds its compiled graphs
        "TMPDIR": str(scratch),  # sockets and locks that a killed engine leaves go with it
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    drafts = [str(arm.parameters["model"])] if arm.method == "draft_model" else []
    if all(is_path(name) for name in (target.model, *drafts)):
        environment["HF_HUB_OFFLINE"] = "1"  # a local model has nothing to ask a hub
    # One runner for every arm: some methods have only this one, and would be compared with a
    # baseline on another.
    environment.setdefault(_RUNNER_PIN, "0")
    if detect_kind() == "cpu":
        # Without it vLLM takes nearly all memory of the machine for the KV cache.
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", str(_kv_cache_gib()))
    return environment


def _kv_cache_gib() -> int:
    """A tenth of the memory, from 1 to 8 GiB: room for the load levels and for the weights."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(8, total // 2**30 // 10))


def _model_revision(model: str) -> str | None:
    """What our own makers or a hub's cache recorded of a local folder; None where nobody did."""
    folder = Path(model).expanduser()
    for name, key in (("draftproof-model.json", "made_by_sha256"), ("config.json", "_commit_hash")):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8")).get(key)
        except (OSError, ValueError, AttributeError):
            continue
        if found:
            return str(found)
    return None
