"""What the makers of models share: running scripts, and folders that appear whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Say = Callable[[str], None]

SCRIPTS = Path(__file__).with_name("scripts")
_RECORD = "draftproof-model.json"


class ModelError(Exception):
    """A model could not be made; the text is a sentence and, where it helps, the last lines."""


def record_of(folder: Path) -> dict[str, Any] | None:
    """What a finished model folder was made from; None when it is not finished or not ours."""
    try:
        document = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def finish(unfinished: Path, folder: Path, record: dict[str, Any]) -> None:
    """Move ``unfinished`` to ``folder`` in one step, so that a half-made model is never served."""
    (unfinished / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if folder.exists():
        old = folder.with_name(folder.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        unfinished.rename(folder)
        shutil.rmtree(old)
    else:
        unfinished.rename(folder)


def run_script(python: Path, script: str, arguments: Sequence[str | Path], say: Say) -> None:
    """Run one of ``scripts/`` with the engine's Python. Raises ModelError with its last lines."""
    last: deque[str] = deque(maxlen=15)
    process = subprocess.Popen(
        [str(python), str(SCRIPTS / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",  # all that it needs is here
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
    )
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            last.append(line.rstrip())
            if line.startswith("- "):  # what a script says to people, not to its log
                say("  " + line[2:].rstrip())
    if process.returncode != 0:
        raise ModelError(f"{script} failed:\n" + "\n".join(last))
