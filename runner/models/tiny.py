"""The tiny test pair: a target and a smaller draft of one vocabulary, trained here in a minute.

Real transformers that vLLM really serves; they only know the text of ``tiny_text``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from runner.engines.install import engine_python
from runner.engines.places import exclusive, models_dir
from runner.models import tiny_text
from runner.models.make import SCRIPTS, Say, finish, record_of, run_script

_TRAINING_SEED = 1
_TRAINING_EXAMPLES = 4000


@dataclass(frozen=True, slots=True)
class TinyPair:
    target: Path
    draft: Path


def tiny_folders() -> TinyPair:
    return TinyPair(models_dir() / "tiny-target", models_dir() / "tiny-draft")


def prepare(say: Say = print) -> TinyPair:
    """Train the pair if it is not there, and return its folders.

    Raises ModelError, or EngineError where no engine is installed.
    """
    pair = tiny_folders()
    record = _record()
    with exclusive(models_dir(), lambda: say("Waiting for another process that makes a model")):
        if all(record_of(folder) == record for folder in (pair.target, pair.draft)):
            say(f"The tiny pair is in {pair.target} and {pair.draft}")
            return pair
        python = engine_python()
        work = models_dir() / ".tiny-unfinished"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        corpus = work / "corpus.json"
        corpus.write_text(json.dumps(_corpus()), encoding="utf-8")
        say("Training the tiny pair (about a minute)")
        run_script(python, "train_tiny.py", [corpus, work], say)
        for name, folder in (("target", pair.target), ("draft", pair.draft)):
            finish(work / name, folder, record)
        shutil.rmtree(work)
    say(f"The tiny pair is in {pair.target} and {pair.draft}")
    return pair


def _corpus() -> list[tuple[str, str]]:
    made = tiny_text.examples(seed=_TRAINING_SEED, count=_TRAINING_EXAMPLES)
    return [(example.request, example.answer) for example in made]


def _record() -> dict[str, object]:
    """Changes whenever the pair must be trained anew."""
    makers = [SCRIPTS / "train_tiny.py", Path(tiny_text.__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in makers)).hexdigest()
    return {"made_by_sha256": digest, "seed": _TRAINING_SEED, "examples": _TRAINING_EXAMPLES}
