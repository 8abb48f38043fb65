"""Say what is understood of a traffic file: its format, how many rows can be replayed, and why
the others can't. Reads JSONL, plain or gzip: OpenAI chat requests ({"messages": ...}), OpenAI
batch requests (custom_id, url, body) and prompts ({"prompt": ...}).

Exit code 0 when at least one request can be replayed, 1 when the file is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.traffic.read import ReadResult, TrafficError, read_file
from runner.traffic.request import NormalisedRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the traffic file")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write it as JSON to OUT")
    parser.add_argument(
        "--first", type=int, default=5, metavar="N", help="requests shown in OUT (default 5)"
    )


def run(options: argparse.Namespace) -> int:
    try:
        result = read_file(options.file)
        document = to_document(result, first=max(0, options.first))
        if options.json is not None:
            text = json.dumps(document, indent=2, ensure_ascii=False)
            options.json.write_text(text + "\n", encoding="utf-8")
    except TrafficError as error:
        print(f"{options.file}: refused: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename or options.file}: {error.strerror}", file=sys.stderr)
        return 1
    _print(document)
    return 0


def to_document(result: ReadResult, *, first: int) -> dict[str, Any]:
    """``result`` as plain values, with the text of the ``first`` requests."""
    return {
        "format": result.format,
        "rows": result.rows,
        "replayable": len(result.requests),
        "trace_only": result.trace_only,
        "skipped": result.skipped,
        "rejected": [asdict(item) for item in result.rejected],
        "rejected_count": result.rejected_count,
        "warnings": result.warnings,
        "requests": [_request(request) for request in result.requests[:first]],
    }


def _request(request: NormalisedRequest) -> dict[str, Any]:
    shown = asdict(request)
    unused = "prompt" if request.kind == "chat" else "messages"
    del shown[unused]
    return shown


def _print(document: dict[str, Any]) -> None:
    print(f"format      {document['format']}")
    for name in ("rows", "replayable", "trace_only"):
        print(f"{name:<12}{document[name]}")
    for reason, count in document["skipped"].items():
        print(f"skipped     {count} ({reason})")
    print(f"rejected    {document['rejected_count']}")
    for item in document["rejected"]:
        print(f"  line {item['line']}: {item['reason']}")
    for warning in document["warnings"]:
        print(f"warning     {warning}")
