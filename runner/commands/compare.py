"""Compute the comparison and verdict again from a folder that `python -m runner run` filled, for
instance after a stop in the middle, or with a newer version. Writes DIR/result.json.

Exit code 0 when at least one candidate has a verdict, 1 when none has.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from runner.commands.tables import describe
from runner.results import FolderError, evaluate, load_folder, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder given to `run --out`")


def run(options: argparse.Namespace) -> int:
    try:
        result = evaluate(load_folder(options.dir))
        write_json(options.dir / "result.json", result)
    except FolderError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{options.dir}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(describe(result))
    verdicts = [found["verdict"] for found in result["candidates"].values()]
    return 0 if any(verdicts) else 1
