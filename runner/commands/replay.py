"""Measure a running OpenAI-compatible server with the requests of a traffic file.

Sends M requests, each with its own sampling settings and once only, and counts what comes back:
with N of them in flight (--concurrency, a closed loop: the next goes out when one ends), or as
users come who do not wait for each other (--rate, an open loop; latencies then count from when a
request was due, and a server that cannot keep up is cut short). Times are in milliseconds, rates
per second of the trial, tokens as the server's usage says.

What OUT holds (null: unknown, never 0):
  ttft_ms   send to first token: the first non-empty text, reasoning or tool-call piece
  tpot_ms   (last token - first token) / (output tokens - tokens of the first event)
  e2e_ms    send to last token
  itl_ms    inter-token latency. A chunk is not a token, as with speculation one chunk carries
            several: the gap between two chunks is shared out over the tokens that the later one
            carried. null unless that number is known for every chunk (one token each, or said
            by the server: see --usage-per-event)
            each of the four as {mean, p50, p90, p95, p99}; itl_ms over tokens, the others over
            completed requests. A percentile of too few values is null: p50 takes 2 of them, p90
            10, p95 20, p99 100
  ttfr_ms, ttfa_ms   to the first reasoning and to the first answer token; null where none came
  output_tokens_per_s, requests_per_s   of completed requests, over duration_s
  completed, failed    requests; outcomes counts both by kind. A refusal is counted, not sent again
  marks                what was odd about requests that were measured, counted by kind:
            tokens_estimated (no usage came; the server's /tokenize counted the text),
            usage_impossible, only_reasoning (no answer followed)
  duration_s           first send to end of the last answer
  prompt_tokens, output_tokens          sums over completed requests
  client    how far to trust us: lateness_p99_ms (our sends after they were due), cpu_s,
            overhead_share (share of the time in which our own work held the event loop),
            peak_in_flight, loop_stall_max_ms, processes, probe_p50_ms and probe_p99_ms (how late
            our own time stamps were, seen by bytes from another process)
  reasons   codes of why these figures may not be believed; docs/metrics.md explains them

Exit code 0 when at least one request completed and the replay reached its end, 1 when not, 2 for
a wrong argument, 130 when interrupted: OUT then holds what was measured until then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from calculator.columns import columns_of
from calculator.measurement import Measurement, TrialRecord
from calculator.summary import FEWEST, summarise
from calculator.validity import REASONS, trial_reasons
from runner import arrivals
from runner.arrivals import ClosedLoop, Load, OpenLoop
from runner.engines.base import Endpoint
from runner.replay import ReplayInterrupted, ReplayResult, replay
from runner.traffic.read import TrafficError, read_file
from runner.traffic.request import NormalisedRequest


class _WrongArgument(Exception):
    pass


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", required=True, type=_url, help="the server's root; /v1 is added where missing")
    add("--model", required=True, metavar="NAME", help="the name the server knows the model by")
    add("--traffic", required=True, type=Path, metavar="FILE", help="JSONL, plain or gzip")
    add("--json", required=True, type=Path, metavar="OUT", help="where the result goes")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--concurrency", type=_positive, metavar="N", help="in flight (default 1)")
    load.add_argument("--rate", type=_number, metavar="R", help="arrivals per second instead")
    add(
        "--burstiness",
        type=_number,
        metavar="B",
        help="with --rate: shape of the gamma gaps; 1 (default) is Poisson, below 1 comes in "
        "bursts, above 1 is steadier",
    )
    add("--even", action="store_true", help="with --rate: even gaps instead of drawn ones")
    add("--ramp-to", type=_number, metavar="R", help="with --rate: move evenly to this rate")
    add("--seed", type=int, default=0, metavar="S", help="of the drawn gaps (default 0)")
    add(
        "--processes",
        type=_positive,
        default=1,
        metavar="K",
        help="sending processes, where one core cannot carry the load (default 1)",
    )
    add("--requests", type=_positive, metavar="M", help="how many to send (default: all)")
    add(
        "--allow-repeats",
        action="store_true",
        help="send requests again where FILE has fewer than M; caches then make the server look "
        "faster than it is",
    )
    add("--max-output-tokens", type=_positive, metavar="TOKENS", help="cap on every answer")
    add(
        "--timeout-s",
        type=_number,
        default=300.0,
        metavar="SECONDS",
        help="limit of one request, send to end (default 300)",
    )
    add("--cache-salt", metavar="TEXT", help="sent as cache_salt: keeps vLLM's prefix cache apart")
    add(
        "--usage-per-event",
        action="store_true",
        help="ask for a token count with each event (vLLM), so that itl_ms is known",
    )
    add(
        "--api-key-env",
        metavar="VARIABLE",
        help="environment variable that holds the API key, sent as Bearer",
    )


def run(options: argparse.Namespace) -> int:
    try:
        endpoint = Endpoint(options.url, options.model, _api_key(options.api_key_env))
        requests = _requests(options.traffic, options.requests, options.allow_repeats)
        load = _load(options, len(requests))
        _check_writable(options.json)
    except _WrongArgument as error:
        print(f"python -m runner replay: {error}", file=sys.stderr)
        return 2
    trouble = None
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    try:
        result = replay(
            endpoint,
            requests,
            concurrency=load.concurrency if isinstance(load, ClosedLoop) else None,
            arrivals=load if isinstance(load, OpenLoop) else None,
            processes=options.processes,
            cache_salt=options.cache_salt,
            max_output_tokens=options.max_output_tokens,
            timeout_s=options.timeout_s,
            on_progress=_show_progress if sys.stderr.isatty() else None,
            usage_per_event=options.usage_per_event,
            should_stop=interrupted.is_set,
        )
    except ReplayInterrupted as stopped:
        result, trouble = stopped.result, stopped.reason
    document = to_document(result, load)
    _print(document)
    try:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        trouble = f"cannot write {options.json}: {error.strerror}"
    if trouble is None and not document["completed"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in document["outcomes"].items())
        trouble = f"no request completed ({kinds})"
    if trouble is not None:
        print(f"python -m runner replay: {trouble}", file=sys.stderr)
        return 130 if interrupted.is_set() else 1
    return 0


def _load(options: argparse.Namespace, requests: int) -> Load:
    drawn = options.burstiness is not None
    if options.rate is None:
        if drawn or options.even or options.ramp_to is not None:
            raise _WrongArgument("--burstiness, --even and --ramp-to belong to --rate")
        return ClosedLoop(options.concurrency or 1)
    if drawn + options.even + (options.ramp_to is not None) > 1:
        raise _WrongArgument("give one of --burstiness, --even and --ramp-to")
    if options.ramp_to is not None:
        return arrivals.ramp(options.rate, options.ramp_to, requests)
    if options.even:
        return arrivals.constant(options.rate, requests)
    return arrivals.gamma(options.rate, options.burstiness or 1.0, requests, options.seed)


def to_document(result: ReplayResult, load: Load) -> dict[str, Any]:
    """``result`` as the JSON that OUT holds."""
    good = [one for one in result.measurements if one.ok]
    output_tokens = _total([one.output_tokens for one in good])
    return {
        "ttft_ms": summary([one.ttft_ms for one in good]),
        "tpot_ms": summary([one.tpot_ms for one in good]),
        "itl_ms": summary(result.itl_ms or ()),
        "e2e_ms": summary([one.e2e_ms for one in good]),
        "ttfr_ms": summary([one.ttfr_ms for one in good]),
        "ttfa_ms": summary([one.ttfa_ms for one in good]),
        "output_tokens_per_s": _rate(output_tokens, result.duration_s),
        "requests_per_s": _rate(len(good), result.duration_s),
        "completed": len(good),
        "failed": len(result.measurements) - len(good),
        "outcomes": dict(sorted(Counter(map(_kind, result.measurements)).items())),
        "marks": dict(sorted(Counter(mark for one in good for mark in one.marks).items())),
        "duration_s": result.duration_s,
        "prompt_tokens": _total([one.prompt_tokens for one in good]),
        "output_tokens": output_tokens,
        "client": asdict(result.client),
        "reasons": trial_reasons(columns_of(_record(result, load))),
    }


def _record(result: ReplayResult, load: Load) -> TrialRecord:
    """``result`` as the one trial of an arm, to ask whether it may be believed."""
    concurrency = load.concurrency if isinstance(load, ClosedLoop) else 0
    return TrialRecord(
        "replay", 0, 0, concurrency, result.duration_s, result.measurements, None, result.client
    )


def summary(values: Sequence[float | None]) -> dict[str, float | None] | None:
    """Mean and percentiles of what is known; None if nothing is."""
    found = summarise(values)
    if not found.count:
        return None
    return {name: getattr(found, name) for name in ("mean", *FEWEST)}


def _total(counts: Sequence[int | None]) -> int | None:
    """A sum in which one unknown makes the whole unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _rate(count: int | None, duration_s: float) -> float | None:
    return None if count is None or duration_s <= 0 else count / duration_s


def _kind(one: Measurement) -> str:
    return one.outcome.value if one.error_kind is None else f"{one.outcome}:{one.error_kind}"


def _requests(path: Path, wanted: int | None, repeats: bool) -> list[NormalisedRequest]:
    try:
        read = read_file(path)
    except TrafficError as error:
        raise _WrongArgument(f"{path}: {error}") from None
    except OSError as error:
        raise _WrongArgument(f"{path}: {error.strerror}") from None
    found = read.requests
    for rejected in read.rejected[:1]:
        print(
            f"{path}: {read.rejected_count} rows cannot be replayed and are left out, the first "
            f"on line {rejected.line}: {rejected.reason}",
            file=sys.stderr,
        )
    wanted = wanted or len(found)
    if wanted > len(found) and not repeats:
        raise _WrongArgument(
            f"{path} holds {len(found)} requests, fewer than the {wanted} of --requests, and a "
            "repeated request would be answered from caches; lower it or give --allow-repeats"
        )
    chosen = []
    for place in range(wanted):
        again, index = divmod(place, len(found))
        request = found[index]
        chosen.append(replace(request, id=f"{request.id}#{again + 1}") if again else request)
    return chosen


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise _WrongArgument(f"--api-key-env: the environment has no variable {variable}")
    if not key.isascii() or not key.isprintable():
        raise _WrongArgument(f"--api-key-env: {variable} holds more than one line of plain text")
    return key


def _check_writable(path: Path) -> None:
    """Before the measuring, not after it."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise _WrongArgument(f"--json: cannot write {path}: {error.strerror}") from None


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 raises for a port that is none
        (parts.hostname or "").encode("idna")
    except ValueError:  # UnicodeError too
        raise argparse.ArgumentTypeError("not an address") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError("give an address such as http://127.0.0.1:8000")
    if parts.query or parts.fragment or parts.username is not None:
        raise argparse.ArgumentTypeError("only the server's root and a path prefix belong here")
    return text


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def _show_progress(done: int, total: int) -> None:
    print(f"\r{done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _print(document: dict[str, Any]) -> None:
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        values = document[name]
        text = "unknown"
        if values is not None:
            known = [(key, value) for key, value in values.items() if value is not None]
            text = "  ".join(f"{key} {value:.2f}" for key, value in known)
        print(f"{name:<21}{text}")
    for name in ("output_tokens_per_s", "requests_per_s", "duration_s"):
        value = document[name]
        print(f"{name:<21}{'unknown' if value is None else f'{value:.2f}'}")
    for name in ("completed", "failed", "prompt_tokens", "output_tokens"):
        value = document[name]
        print(f"{name:<21}{'unknown' if value is None else value}")
    client = document["client"]
    late = client["probe_p50_ms"]
    stamps = "not probed" if late is None else f"late by {late:.2f} ms (p50)"
    print(
        f"client               sends late by {client['lateness_p99_ms']:.2f} ms (p99), "
        f"time stamps {stamps}"
    )
    for code in document["reasons"]:
        print(f"not to be believed   {code}: {REASONS[code]}")
