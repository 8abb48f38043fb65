"""``python -m runner replay`` as a user types it, against a real simulator process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.commands.replay import summary
from runner.engines.simulator import SimulatorProcess
from runner.plan import Arm, Target
from tests.runner.scripted_server import ScriptedServer
from tests.runner.streams import DONE, event, stream, text, usage


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    behaviour = {"none": {"ttft_ms": 30, "step_ms": 3, "output_tokens": 10}}
    workdir = tmp_path_factory.mktemp("simulator")
    engine = SimulatorProcess(Target("simulator", "toy", simulator=behaviour), Arm("a"), workdir)
    yield engine.start(lambda: False).url
    engine.stop()


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"question {i}"}]} for i in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def replay(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runner", "replay", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_measures_a_server(url: str, traffic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ended = replay(
        *("--url", url, "--model", "toy", "--traffic", traffic),
        *("--concurrency", 2, "--requests", 4, "--json", out),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(out.read_text())
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        values = found[name]
        assert set(values) == {"mean", "p50", "p90", "p95", "p99"}
        assert values["p50"] is not None
    assert found["e2e_ms"]["p90"] is None, "4 requests have no 90th percentile"
    assert found["itl_ms"]["p95"] >= found["itl_ms"]["p90"] >= found["itl_ms"]["p50"]
    assert found["ttft_ms"]["p50"] >= 30
    assert found["tpot_ms"]["mean"] >= 2.9
    assert (found["completed"], found["failed"], found["output_tokens"]) == (4, 0, 40)
    assert found["output_tokens_per_s"] == pytest.approx(40 / found["duration_s"])
    assert found["requests_per_s"] == pytest.approx(4 / found["duration_s"])
    assert found["prompt_tokens"] == 16
    assert found["client"]["peak_in_flight"] == 2
    assert "output_tokens_per_s" in ended.stdout
    (shown,) = [line for line in ended.stdout.splitlines() if line.startswith("e2e_ms")]
    assert "p50" in shown
    assert "p90" not in shown


@pytest.mark.parametrize(
    "load", [("--rate", 40), ("--rate", 40, "--even"), ("--rate", 20, "--ramp-to", 60)]
)
def test_an_open_loop_by_two_processes(
    load: tuple[object, ...], url: str, traffic: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    ended = replay(
        *("--url", url, "--model", "toy", "--traffic", traffic, "--json", out),
        *(*load, "--requests", 6, "--processes", 2),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(out.read_text())
    assert found["completed"] == 6
    assert found["client"]["processes"] == 2
    assert found["ttfa_ms"]["p50"] == found["ttft_ms"]["p50"]
    assert (found["ttfr_ms"], found["marks"]) == (None, {})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"--requests": 7}, "--allow-repeats"),
        ({"--requests": 0}, "whole number"),
        ({"--concurrency": "two"}, "whole number"),
        ({"--timeout-s": -1}, "number above 0"),
        ({"--rate": 0}, "number above 0"),
        ({"--rate": 5, "--concurrency": 2}, "not allowed with argument"),
        ({"--burstiness": 2}, "belong to --rate"),
        ({"--rate": 5, "--burstiness": 2, "--ramp-to": 9}, "give one of"),
        ({"--url": "localhost:8000"}, "http://"),
        ({"--url": "http://user:secret@host"}, "path prefix"),
        ({"--url": "http://host:port"}, "not an address"),
        ({"--url": "http://a..b"}, "not an address"),
        ({"--url": f"http://{'a' * 64}.example"}, "not an address"),
        ({"--traffic": "/nowhere.jsonl"}, "No such file"),
        ({"--traffic": os.devnull}, os.devnull),
        ({"--json": "/nowhere/out.json"}, "cannot write"),
        ({"--api-key-env": "DRAFTPROOF_NO_SUCH_KEY"}, "DRAFTPROOF_NO_SUCH_KEY"),
        ({"--nonsense": 1}, "--nonsense"),
    ],
)
def test_wrong_argument_is_one_line(
    changed: dict[str, object],
    reason: str,
    traffic: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"--url": "http://127.0.0.1:9", "--model": "toy", "--traffic": traffic}
    given |= {"--json": tmp_path / "out.json"} | changed
    try:
        code: object = main(["replay", *(str(part) for pair in given.items() for part in pair)])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert reason in told
    assert "secret" not in told


def test_repeats_only_when_allowed(url: str, traffic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ended = replay(
        *("--url", url, "--model", "toy", "--traffic", traffic, "--allow-repeats"),
        *("--concurrency", 4, "--requests", 14, "--json", out),
    )
    assert ended.returncode == 0
    assert json.loads(out.read_text())["completed"] == 14


def test_no_server(traffic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ended = replay(
        *("--url", "http://127.0.0.1:9", "--model", "toy", "--traffic", traffic, "--json", out)
    )
    assert ended.returncode == 1
    assert "stopped taking connections" in ended.stderr
    found = json.loads(out.read_text())
    assert (found["completed"], found["ttft_ms"], found["output_tokens"]) == (0, None, None)
    assert found["outcomes"] == {"refused:connection_refused": 6}


def test_unknown_is_null_and_the_key_is_sent(traffic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    stop = event({}, finish="stop")
    with ScriptedServer() as server:
        url = server.play("deep", stream(text("a"), text("b c"), stop, DONE))
        common = ("--model", "toy", "--traffic", traffic, "--requests", 2, "--json", out)
        first = replay("--url", url, *common, "--api-key-env", "TOY_KEY", TOY_KEY="k")
        unknown = json.loads(out.read_text())
        sent = server.received("deep")
        server.play("deep", stream(text("a"), text("b c"), stop, event(usage=usage(3)), DONE))
        replay("--url", url, *common)
        known = json.loads(out.read_text())
    assert first.returncode == 0
    assert {entry["headers"]["authorization"] for entry in sent} == {"Bearer k"}
    for name in ("tpot_ms", "itl_ms", "output_tokens", "output_tokens_per_s", "prompt_tokens"):
        assert unknown[name] is None
    assert unknown["e2e_ms"] is not None
    assert known["tpot_ms"] is not None
    assert known["itl_ms"] is None  # three tokens in two chunks: whose gap is whose?
    assert known["output_tokens"] == 6


def test_help_explains_units() -> None:
    ended = replay("--help")
    assert ended.returncode == 0
    assert "milliseconds" in ended.stdout
    assert "A chunk is not a token" in ended.stdout


def test_summary() -> None:
    assert summary([]) is None
    assert summary([None, None]) is None
    found = summary([*map(float, range(1, 101)), None])
    assert found == pytest.approx(
        {"mean": 50.5, "p50": 50.5, "p90": 90.1, "p95": 95.05, "p99": 99.01}
    )
    assert summary([7.0]) == {"mean": 7.0, **dict.fromkeys(("p50", "p90", "p95", "p99"))}
    few = summary([*map(float, range(1, 20))])
    assert few is not None
    assert [name for name, value in few.items() if value is None] == ["p95", "p99"]


def test_a_disk_that_is_full_at_the_end_is_one_sentence(url: str, traffic: Path) -> None:
    arguments = ("--url", url, "--model", "toy", "--traffic", traffic)
    ended = replay(*arguments, "--requests", 1, "--json", "/dev/full")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "cannot write /dev/full: No space left" in ended.stderr
    assert "completed            1" in ended.stdout, "what was measured is told all the same"


@pytest.mark.parametrize("key", ["k\n", " k", "k"])
def test_a_key_may_end_in_a_line_end(key: str, traffic: Path, tmp_path: Path) -> None:
    with ScriptedServer() as server:
        url = server.play("key", stream(text("a"), event({}, finish="stop"), DONE))
        common = ("--model", "toy", "--traffic", traffic, "--json", tmp_path / "out.json")
        ended = replay("--url", url, *common, "--api-key-env", "TOY_KEY", TOY_KEY=key)
        sent = server.received("key")
    assert ended.returncode == 0
    assert {entry["headers"]["authorization"] for entry in sent} == {"Bearer k"}


def test_interrupted_it_keeps_what_was_measured(url: str, traffic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "runner", "replay", "--url", url, "--model", "toy"),
            *("--traffic", traffic, "--allow-repeats", "--requests", "2000"),
            *("--concurrency", "1", "--json", out),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert 0 < json.loads(out.read_text())["completed"] < 2000


def test_a_place_that_cannot_be_written_is_told_before_measuring(
    url: str, traffic: Path, tmp_path: Path
) -> None:
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "nowhere" / "out.json")
    arguments = ("--url", url, "--model", "toy", "--traffic", traffic)
    done = replay(*arguments, "--concurrency", 1, "--json", dangling)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
