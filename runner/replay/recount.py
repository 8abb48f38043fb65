"""Answers without usage: after the trial, the server's own tokeniser counts their text.

The figure is an estimate: text can be cut into tokens in more ways than the one it was written in.
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from calculator.measurement import Measurement
from runner.engines.base import Endpoint
from runner.replay.client import api_root
from runner.replay.count import Counted

AT_ONCE = 4
TIMEOUT_S = 10.0


def recount(
    counted: Sequence[Counted],
    endpoint: Endpoint,
    should_stop: Callable[[], bool] | None = None,
) -> list[Measurement]:
    """The measurements, with ``output_tokens`` counted by ``/tokenize`` where usage was missing.

    Those are marked ``tokens_estimated``. Where the server has no tokeniser to ask, or
    ``should_stop`` says so, the number stays unknown.
    """
    missing = [one for one in counted if one.text is not None]
    found: dict[int, int] = {}
    if missing and (first := _count(endpoint, missing[0].text or "")) is not None:
        found[missing[0].measurement.sequence] = first

        def ask(one: Counted) -> None:
            if should_stop and should_stop():
                return
            tokens = _count(endpoint, one.text or "")
            if tokens is not None:
                found[one.measurement.sequence] = tokens

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(ask, missing[1:]))
    return [_with_tokens(one.measurement, found) for one in counted]


def _with_tokens(measurement: Measurement, found: dict[int, int]) -> Measurement:
    tokens = found.get(measurement.sequence)
    if tokens is None:
        return measurement
    return replace(
        measurement, output_tokens=tokens, marks=(*measurement.marks, "tokens_estimated")
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


# No proxy of the environment and no redirect, as the client has none.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def _count(endpoint: Endpoint, text: str) -> int | None:
    root = api_root(endpoint.url).removesuffix("/v1")
    body = {"model": endpoint.model, "prompt": text, "add_special_tokens": False}
    headers = {"Content-Type": "application/json"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    request = urllib.request.Request(  # noqa: S310 - Client took only http and https
        f"{root}/tokenize", json.dumps(body).encode(), headers
    )
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as reply:
            count = json.load(reply).get("count")
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return None
    whole = isinstance(count, int) and not isinstance(count, bool) and count > 0
    return count if whole else None
