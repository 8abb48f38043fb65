"""``python -m runner`` as a person at a terminal uses it, against the simulator."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runner.plan_codec import from_toml
from runner.results import load_folder, open_folder

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "webapp" / "samples" / "data" / "demo_sample.jsonl"
CASES = Path(__file__).parent / "data" / "traffic"

# Steps are slow enough for the client's own work to be a small share of them: a client that is
# busy for more than a twentieth of the time rightly makes a trial that is not believed.
NORMAL = "{ ttft_ms = 10.0, step_ms = 30.0, output_tokens = 7, noise_cv = 0.03 }"
FASTER = (
    "{ ttft_ms = 10.0, step_ms = 30.0, output_tokens = 7, noise_cv = 0.03, "
    "draft_tokens = 4, acceptance_rate = 0.75 }"
)
PLAN = """
[target]
engine = "simulator"
model = "demo"
[target.simulator]
none = {none}
{others}
[traffic]
file = "{traffic}"
[design]
runs_per_arm = {runs}
seed = 3
warmup_requests = 1
output_check_requests = 4
output_check_tokens = 8
[[levels]]
concurrency = 2
requests = 12
[[arms]]
name = "baseline"
[[arms]]
name = "ngram"
method = "ngram"
parameters = {{ num_speculative_tokens = 4, prompt_lookup_min = 2, prompt_lookup_max = 4 }}
[price]
usd_per_hour = "1.20"
source = "a price list"
as_of = "2026-01-31"
[decision]
own_concurrency = 2
"""


def plan_file(
    folder: Path, *, ngram: str | None = NORMAL, none: str = NORMAL, runs: int = 3
) -> Path:
    path = folder / "plan.toml"
    others = "" if ngram is None else f"ngram = {ngram}"
    path.write_text(PLAN.format(none=none, others=others, traffic=SAMPLE, runs=runs))
    return path


def start(*arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "runner", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    process = start(*arguments)
    out, error = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


@pytest.fixture(scope="module")
def measured_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small experiment that was measured to its end."""
    folder = tmp_path_factory.mktemp("measured")
    plan = plan_file(folder, ngram=FASTER, runs=2)
    plan.write_text(plan.read_text().replace("requests = 12", "requests = 6"))
    done = command("run", plan, "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


def journals(out: Path) -> dict[str, bytes]:
    found = sorted(out.glob("runs/*/trial-*.jsonl"))
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def ended_journals(out: Path) -> dict[str, bytes]:
    return {name: text for name, text in journals(out).items() if b'"type":"end"' in text}


def result_of(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "result.json").read_text())
    return document


@pytest.mark.quiet
def test_faster_arm_is_switched_on_and_the_folder_gives_the_same_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command("run", plan_file(tmp_path, ngram=FASTER), "--out", out)
    assert done.returncode == 0, done.stderr
    result = result_of(out)
    found = result["candidates"]["ngram"]
    assert found["verdict"]["code"] == "switch_on", found["verdict"]
    assert found["verdict"]["sentence"] in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 100
    (level,) = found["comparison"]["levels"]
    # A step writes up to 1 + a + a^2 + a^3 + a^4 = 3.05 tokens with a = 0.75, of which 2.05 of 4
    # drafted; answers of 9 tokens end inside their last draft.
    assert level["effects"]["tpot_ms"]["ratio"]["high"] < 0.7
    assert 0.35 < level["acceptance"]["acceptance_rate"]["estimate"] < 0.6
    assert found["comparison"]["output_check"]["status"] == "unchanged"
    assert [run["status"] for run in result["runs"]] == ["recorded"] * 6
    assert "[6/6] ngram: recorded" in done.stderr
    stored = "".join(path.read_text() for path in out.rglob("*.json*"))
    assert "bicycle shop" not in stored, "no text of the traffic is kept in the folder"

    (out / "result.json").unlink()
    again = command("compare", out)
    assert again.returncode == 0, again.stderr
    assert result_of(out) == result
    assert again.stdout == done.stdout
    for told in ("outputs: unchanged", "baseline against itself", "1.20 USD an hour", "kind"):
        assert told in done.stdout


def test_equal_arms_are_not_switched_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command("run", plan_file(tmp_path, runs=2), "--out", out)
    assert done.returncode == 0, done.stderr
    assert result_of(out)["candidates"]["ngram"]["verdict"]["code"] in {"leave_off", "not_proven"}


def test_killed_experiment_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = plan_file(tmp_path, runs=2)
    process = start("run", plan, "--out", out)
    deadline = time.monotonic() + 40
    while len(ended_journals(out)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = ended_journals(out)
    assert 2 <= len(before) < 4
    done = command("run", plan, "--out", out)
    assert done.returncode == 0, done.stderr
    after = ended_journals(out)
    assert len(after) == 4
    assert {name: after[name] for name in before} == before, "what was measured is kept"


def test_interrupt_stops_the_engine_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    slow = NORMAL.replace("step_ms = 30.0", "step_ms = 200.0")
    process = start("run", plan_file(tmp_path, none=slow), "--out", out)
    deadline = time.monotonic() + 40
    while not list(out.glob("runs/*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    port = int(next(out.glob("runs/*/simulator.port")).read_text())
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"go on with: python -m runner run {tmp_path / 'plan.toml'} --out {out}" in error
    assert "Traceback" not in error
    assert not _listens(port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_arm_that_is_not_supported_is_told_and_tried_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command("run", plan_file(tmp_path, ngram=None, runs=2), "--out", out)
    assert done.returncode == 0, done.stderr
    result = result_of(out)
    assert result["candidates"]["ngram"] == {"comparison": None, "verdict": None}
    refused = [run for run in result["runs"] if run["arm"] == "ngram"]
    assert [run["status"] for run in refused] == ["unsupported"]
    assert "not measured: The simulator has no behaviour" in done.stdout


def test_failed_baseline_ends_the_experiment(tmp_path: Path) -> None:
    broken = NORMAL.replace("ttft_ms", 'exit_at_start = "no memory", ttft_ms')
    done = command("run", plan_file(tmp_path, none=broken), "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "engine: no memory" in done.stderr
    assert "Traceback" not in done.stderr


def test_folder_of_another_experiment_is_not_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    broken = NORMAL.replace("ttft_ms", 'exit_at_start = "no memory", ttft_ms')
    command("run", plan_file(tmp_path, none=broken), "--out", out)
    before = (out / "plan.json").read_bytes()
    done = command("run", plan_file(tmp_path), "--out", out)
    assert done.returncode == 2
    assert "another plan or other traffic" in done.stderr
    assert (out / "plan.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "usage: python -m runner COMMAND"),
        (("fly",), "no command 'fly'"),
        (("inspect",), "the following arguments are required: FILE"),
        (("inspect", "x", "--first", "many"), "invalid int value"),
        (("run",), "give PLAN.toml and --out DIR"),
        (("run", "none.toml", "--out", "o"), "No such file"),
        (("run", "a", "b", "--out", "o"), "unrecognized arguments: b"),
        (("compare",), "required: DIR"),
    ],
)
def test_wrong_argument_is_one_line_and_exit_2(arguments: tuple[str, ...], line: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert line in done.stderr + done.stdout
    assert len(done.stderr.splitlines()) <= 1


def test_plan_with_missing_traffic_is_one_line(tmp_path: Path) -> None:
    path = plan_file(tmp_path)
    path.write_text(path.read_text().replace(str(SAMPLE), "none.jsonl"))
    done = command("run", path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_plan_too_big_for_its_sample_is_one_line(tmp_path: Path) -> None:
    path = plan_file(tmp_path)
    path.write_text(path.read_text().replace("requests = 12", "requests = 240"))
    done = command("run", path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "add 179 more requests" in done.stderr


def test_compare_without_an_experiment(tmp_path: Path) -> None:
    done = command("compare", tmp_path)
    assert done.returncode == 1
    assert "holds no experiment" in done.stderr


def test_example_can_be_run_through_the_reader(tmp_path: Path) -> None:
    done = command("run", "--example")
    assert done.returncode == 0
    (tmp_path / "plan.toml").write_text(done.stdout)
    refused = command("run", tmp_path / "plan.toml", "--out", tmp_path / "out")
    assert "traffic.jsonl" in refused.stderr, "all but the traffic file was accepted"


def test_inspect_writes_what_it_understood(tmp_path: Path) -> None:
    out = tmp_path / "seen.json"
    done = command("inspect", CASES / "18_vllm_custom_types.jsonl", "--json", out, "--first", 2)
    assert done.returncode == 0
    document = json.loads(out.read_text())
    assert (document["format"], document["rows"], document["replayable"]) == ("prompt", 10, 6)
    assert [item["line"] for item in document["rejected"]] == [4, 5, 8, 9, 10]
    assert [request["prompt"] for request in document["requests"]] == ["00042", "2031-02-03"]
    assert "line 8" in done.stdout


def test_inspect_of_a_refused_file_is_one_line(tmp_path: Path) -> None:
    done = command("inspect", CASES / "22_truncated_stream.jsonl.gz")
    assert done.returncode == 1
    assert "24 whole lines" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plan.json", "[]"),
        ("plan.json", '{"plan"'),
        ("runs/000-baseline/run.json", '{"index": 0, "ar'),
        ("plan.json", '{"schema_version": 1, "traffic": "a", "traffic_sha256": "b", "plan": []}'),
        ("runs/000-baseline/run.json", '{"index": 0, "arm": "baseline", "block": 0}'),
        ("runs/000-baseline/run.json", '{"schema_version": 1, "index": 0, "new": 1}'),
        (
            "runs/000-baseline/run.json",
            '{"schema_version": 1, "index": 0, "arm": "b", "block": 0, "output": {"answers": 5}}',
        ),
        ("runs/000-baseline/trial-000.jsonl", '{"type": "trial", "schema_version": 1, "x": 2}\n'),
    ],
)
def test_a_damaged_folder_is_one_sentence(
    measured_folder: Path, tmp_path: Path, name: str, content: str
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(measured_folder, out)
    (out / name).write_text(content)
    done = command("compare", out)
    assert done.returncode == 1
    assert str(out / name) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_plan_without_a_baseline_is_one_sentence(measured_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(measured_folder, out)
    document = json.loads((out / "plan.json").read_text())
    document["plan"]["arms"] = document["plan"]["arms"][1:]
    (out / "plan.json").write_text(json.dumps(document))
    done = command("compare", out)
    assert done.returncode == 1
    assert "plan.json: Exactly one arm" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_result_that_cannot_be_written_is_one_sentence(
    measured_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(measured_folder, out)
    (out / "result.json").unlink()
    (out / "result.json").mkdir()
    done = command("compare", out)
    assert done.returncode == 1
    assert done.stderr == f"{out}: Is a directory\n"


def test_a_full_disk_is_one_sentence_and_ends_the_engine(tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = plan_file(tmp_path, runs=2)
    # Writing beyond this many bytes of a file fails, as on a full disk: plan.json fits, and the
    # measurements of a trial don't.
    limited = f"ulimit -f 4; exec {sys.executable} -m runner run {plan} --out {out}"
    done = subprocess.run(
        ["bash", "-c", limited], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"--out {out}: File too large"
    assert "Traceback" not in done.stderr
    assert not _listens(int(next(out.glob("runs/*/simulator.port")).read_text()))


def test_a_trial_that_the_engine_spoilt_is_left_out_with_its_reason(
    measured_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(measured_folder, out)
    journal = out / "runs" / "001-ngram" / "trial-000.jsonl"
    *rows, end = map(json.loads, journal.read_text().splitlines())
    end["invalid_reasons"] = ["counters_reset"]
    journal.write_text("".join(json.dumps(row) + "\n" for row in (*rows, end)))
    done = command("compare", out)
    (level,) = result_of(out)["candidates"]["ngram"]["comparison"]["levels"]
    assert level["excluded"] == [{"arm": "ngram", "run": 1, "reasons": ["counters_reset"]}]
    told = " ".join(done.stdout.split())
    assert "left out: 2 in flight, run 2 (ngram): The engine's counters fell" in told


def test_the_key_of_the_answers_goes_with_the_last_run(measured_folder: Path) -> None:
    assert not (measured_folder / "digest.key").exists()
    assert "digest_key" not in (measured_folder / "plan.json").read_text()


def test_digests_and_their_key_are_for_the_owner_only(
    measured_folder: Path, tmp_path: Path
) -> None:
    for path in measured_folder.glob("runs/*/run.json"):
        assert path.stat().st_mode & 0o077 == 0
    plan = from_toml(plan_file(tmp_path)).plan
    known = open_folder(tmp_path / "out", plan, SAMPLE)
    key = tmp_path / "out" / "digest.key"
    assert key.stat().st_mode & 0o077 == 0
    assert key.read_text() == known.digest_key == load_folder(tmp_path / "out").digest_key


def test_a_deleted_part_is_measured_again_without_an_output_check(
    measured_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(measured_folder, out)
    before = journals(out)
    for name in ("run.json", "trial-000.jsonl"):
        (out / "runs" / "001-ngram" / name).unlink()
    (out / "runs" / "002-ngram" / "trial-000.jsonl").unlink()
    done = command("run", measured_folder.parent / "plan.toml", "--out", out)
    assert done.returncode == 0, done.stderr
    after = journals(out)
    assert set(after) == set(before)
    assert {name for name in before if after[name] == before[name]} == {
        "runs/000-baseline/trial-000.jsonl",
        "runs/003-baseline/trial-000.jsonl",
    }
    runs = [json.loads(path.read_text()) for path in sorted(out.glob("runs/*/run.json"))]
    # The key is gone: digests made now would fit no other run's.
    assert [run["output"] is None for run in runs] == [False, True, False, False]


def test_measurements_without_their_plan_are_not_taken_over(
    measured_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(measured_folder, out)
    (out / "plan.json").unlink()
    done = command("run", measured_folder.parent / "plan.toml", "--out", out)
    assert done.returncode == 2
    assert "plan.json is missing" in done.stderr
    assert not (out / "plan.json").exists()


def test_one_run_at_a_time_measures_into_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with (out / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = command("run", plan_file(tmp_path, runs=2), "--out", out)
    assert done.returncode == 2
    assert "Another run is measuring" in done.stderr


def test_an_out_that_is_a_file_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command("run", plan_file(tmp_path, runs=2), "--out", tmp_path / "file")
    assert done.returncode == 1
    assert done.stderr.startswith(f"--out {tmp_path / 'file'}: ")
    assert len(done.stderr.strip().splitlines()) == 1
