"""Install and check the serving engine (vLLM), which lives in an environment of its own.

  python -m runner engine install [--kind cpu|gpu]   make var/engines/<kind> (1 to 10 GB, once)
  python -m runner engine check                      import it and print its version

ENGINE_PYTHON names the Python of an existing environment to use instead.
DRAFTPROOF_TORCH_INDEX names another index of PyTorch's CPU builds.
Exit code 0 when the engine can be imported, 1 when not.
"""

from __future__ import annotations

import argparse
import os
import sys

from runner.commands.progress import say
from runner.engines.base import EngineError
from runner.engines.install import (
    KINDS,
    InstallError,
    check,
    detect_kind,
    engine_python,
    environment,
    install,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("install", "check"))
    parser.add_argument(
        "--kind",
        choices=KINDS,
        help="the machine's kind; default: gpu where an NVIDIA GPU is found, else cpu",
    )


def run(options: argparse.Namespace) -> int:
    try:
        if options.action == "install" and not os.environ.get("ENGINE_PYTHON"):
            kind = options.kind or detect_kind()
            version = install(kind, say)
            print(f"vLLM {version} is ready in {environment(kind)}")
        else:
            python = engine_python()
            say(f"Checking {python}")
            print(f"vLLM {check(python)} is ready")
    except (EngineError, InstallError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
