"""``python -m runner``: measure from a terminal, on a machine that has no database.

Exit codes: 0 done, 1 it failed, 2 a wrong argument, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

COMMANDS = {
    "inspect": "say what is understood of a traffic file",
    "replay": "measure a running OpenAI-compatible server with a traffic file",
    "run": "carry out an experiment described by a PLAN.toml",
    "compare": "compute the comparison and verdict again from a result folder",
    "engine": "install and check the serving engine",
    "models": "make the local demo and test models",
}


class Parser(argparse.ArgumentParser):
    """An argument error is one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        _overview()
        return 0 if given else 2
    name = given[0]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"python -m runner: no command {name!r}; known are {known}", file=sys.stderr)
        return 2
    module = _load(name)
    parser = Parser(
        prog=f"python -m runner {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    options = parser.parse_args(given[1:])
    try:
        return int(module.run(options))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _load(name: str) -> ModuleType:
    """Only the wanted command is imported, so that one that is broken harms no other."""
    return importlib.import_module(f"runner.commands.{name}")


def _overview() -> None:
    print("usage: python -m runner COMMAND ...\n\n" + (__doc__ or "") + "\ncommands:")
    for name, text in COMMANDS.items():
        print(f"  {name:<10}{text}")
    print("\nEach command explains itself and its units: python -m runner COMMAND --help")


if __name__ == "__main__":
    sys.exit(main())
