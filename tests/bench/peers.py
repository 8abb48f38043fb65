"""Other load generators: how each is installed, asked for the same load, and read.

Every tool gets the same prompts and limits, and reports in its own words; ``Reported`` is those
words translated (``docs/benchmarks.md`` says how).
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.engines.base import Endpoint, EngineError
from runner.engines.install import engine_python
from runner.engines.places import ROOT, var_dir
from runner.models import tiny

REQUIREMENTS = Path(__file__).with_name("peers.txt")
LIMIT_S = 240.0
TOKENIZER = "bench/tiny"
_REVISION = "0" * 40
_VLLM_MAIN = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


class NotHad(Exception):
    """A tool could not be installed or run; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a tool is asked to send: each prompt once, ``concurrency`` at a time."""

    endpoint: Endpoint
    prompts: Sequence[str]
    concurrency: int
    max_tokens: int
    processes: int = 1
    """Ours only: the others decide for themselves."""
    model: Path = field(default_factory=lambda: tiny.tiny_folders().target)
    """A folder with a tokeniser, which the others want to have."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What a tool printed, in ms and tokens per second of its own clock."""

    completed: int
    ttft_p50_ms: float
    ttft_p99_ms: float | None
    """None: too few requests for one."""
    tpot_mean_ms: float
    output_tokens_per_s: float
    cpu_s: float
    """CPU time of the tool with all its processes, from start to end."""
    reasons: tuple[str, ...] = ()
    """Ours only: why it says itself that its figures may not be believed."""


@dataclass(frozen=True, slots=True)
class Tool:
    """``command(load, folder)`` is what to run; ``read(folder)`` what came of it."""

    name: str
    command: Callable[[Load, Path], list[str]]
    read: Callable[[Path], dict[str, Any]]


def run(tool: Tool, load: Load, folder: Path, *, cores: Collection[int] | None = None) -> Reported:
    """Run ``tool`` on ``cores``; its files go under ``folder``. Raises NotHad."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = tool.command(load, folder)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "log").open("wb") as log, _on(cores):
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
            env=_environment(folder, load),
        )  # fmt: skip
    try:
        process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NotHad(f"did not end in {LIMIT_S:g} s") from None
    finally:
        process.terminate()
        process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        values = tool.read(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"ended with code {process.returncode} and no result ({type(error).__name__})"
        raise NotHad(reason) from None
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Reported(cpu_s=cpu_s, **values)


@contextmanager
def _on(cores: Collection[int] | None) -> Iterator[None]:
    """What is started here runs on ``cores`` (None: anywhere)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _environment(folder: Path, load: Load) -> dict[str, str]:
    """Nobody asks a hub or tells a vendor anything; the tokeniser is in a cache made here."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HF_HOME")}
    return environment | {
        "HF_HOME": str(_tokenizer_cache(folder, load.model)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OPENAI_API_KEY": load.endpoint.api_key or "none",
    }


def _tokenizer_cache(folder: Path, model_folder: Path) -> Path:
    """AIPerf takes no folder, only the name of something in a hub's cache."""
    home = folder / "hub-cache"
    model = home / "hub" / f"models--{TOKENIZER.replace('/', '--')}"
    snapshot = model / "snapshots" / _REVISION
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(_REVISION)
    for path in model_folder.absolute().iterdir():
        if path.suffix in (".json", ".jinja"):
            (snapshot / path.name).symlink_to(path)
    return home


def _lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# --- ours --------------------------------------------------------------------------------------
def _our_command(load: Load, folder: Path) -> list[str]:
    rows = [
        {"id": f"p{n}", "prompt": text, "max_tokens": load.max_tokens, "temperature": 0}
        for n, text in enumerate(load.prompts)
    ]
    return [
        sys.executable, "-m", "runner", "replay", f"--url={load.endpoint.url}",
        f"--model={load.endpoint.model}", f"--concurrency={load.concurrency}",
        f"--traffic={_lines(folder / 'prompts.jsonl', rows)}", f"--json={folder / 'result.json'}",
        f"--processes={load.processes}", "--api-key-env=OPENAI_API_KEY",
    ]  # fmt: skip


def _read_ours(folder: Path) -> dict[str, Any]:
    found = _json(folder / "result.json")
    return {
        "completed": found["completed"],
        "ttft_p50_ms": found["ttft_ms"]["p50"],
        "ttft_p99_ms": found["ttft_ms"]["p99"],
        "tpot_mean_ms": found["tpot_ms"]["mean"],
        "output_tokens_per_s": found["output_tokens_per_s"],
        "reasons": tuple(found["reasons"]),
    }


# --- vllm bench serve --------------------------------------------------------------------------
def _vllm_command(load: Load, folder: Path) -> list[str]:
    try:
        python = engine_python()
    except EngineError as error:
        raise NotHad(error.reason) from None
    rows = [{"conversations": [{"value": text}, {"value": "none"}]} for text in load.prompts]
    (folder / "prompts.json").write_text(json.dumps(rows), encoding="utf-8")
    return [
        str(python), "-c", _VLLM_MAIN, "--backend=openai", f"--base-url={load.endpoint.url}",
        f"--model={load.endpoint.model}", f"--tokenizer={load.model.absolute()}",
        # The one format of its own that is read without packages which the engine lacks.
        "--dataset-name=sharegpt", f"--dataset-path={folder / 'prompts.json'}",
        f"--sharegpt-output-len={load.max_tokens}", "--disable-shuffle",
        f"--num-prompts={len(load.prompts)}", f"--max-concurrency={load.concurrency}",
        "--temperature=0", "--percentile-metrics=ttft,tpot", "--metric-percentiles=50,99",
        "--save-result", f"--result-dir={folder}", "--result-filename=result.json",
        "--disable-tqdm", "--ready-check-timeout-sec=0",
    ]  # fmt: skip


def _read_vllm(folder: Path) -> dict[str, Any]:
    found = _json(folder / "result.json")
    return {
        "completed": found["completed"],
        "ttft_p50_ms": found["p50_ttft_ms"],
        "ttft_p99_ms": found["p99_ttft_ms"],
        "tpot_mean_ms": found["mean_tpot_ms"],
        "output_tokens_per_s": found["output_throughput"],
    }


# --- GuideLLM ----------------------------------------------------------------------------------
def _guidellm_command(load: Load, folder: Path) -> list[str]:
    rows = [{"prompt": text, "output_tokens_count": load.max_tokens} for text in load.prompts]
    prompts = _lines(folder / "prompts.jsonl", rows)
    backend = f"kind=openai_http,target={load.endpoint.url},model={load.endpoint.model}"
    return [
        _installed("guidellm"), "run", f"--backend={backend},request_format=/v1/completions",
        f"--profile=kind=concurrent,streams={load.concurrency}",
        f"--constraint=kind=max_requests,count={len(load.prompts)}",
        f"--data=kind=json_file,path={prompts}",
        f"--tokenizer=kind=huggingface_auto,model={load.model.absolute()}",
        f"--output=kind=json,path={folder / 'result.json'}", "--disable-console",
    ]  # fmt: skip


def _read_guidellm(folder: Path) -> dict[str, Any]:
    metrics = _json(folder / "result.json")["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]["percentiles"]
    return {
        "completed": metrics["request_totals"]["successful"],
        "ttft_p50_ms": ttft["p50"],
        "ttft_p99_ms": ttft["p99"],
        # Its own TPOT has TTFT in it; its ITL is what the others call TPOT.
        "tpot_mean_ms": metrics["inter_token_latency_ms"]["successful"]["mean"],
        "output_tokens_per_s": metrics["output_tokens_per_second"]["successful"]["mean"],
    }


# --- AIPerf ------------------------------------------------------------------------------------
def _aiperf_command(load: Load, folder: Path) -> list[str]:
    rows = [{"text": text, "output_length": load.max_tokens} for text in load.prompts]
    return [
        _installed("aiperf"), "profile", f"--model-names={load.endpoint.model}",
        "--endpoint-type=completions", "--streaming", f"--url={load.endpoint.url}",
        f"--concurrency={load.concurrency}", f"--request-count={len(load.prompts)}",
        f"--input-file={_lines(folder / 'prompts.jsonl', rows)}",
        "--custom-dataset-type=single_turn", f"--extra-inputs=max_tokens:{load.max_tokens}",
        f"--tokenizer={TOKENIZER}", f"--output-artifact-dir={folder}", "--ui-type=none",
        "--no-gpu-telemetry", "--no-server-metrics", "--use-server-token-count",
    ]  # fmt: skip


def _read_aiperf(folder: Path) -> dict[str, Any]:
    found = _json(folder / "profile_export_aiperf.json")
    return {
        "completed": round(found["request_count"]["avg"]),
        "ttft_p50_ms": found["time_to_first_token"]["p50"],
        "ttft_p99_ms": found["time_to_first_token"]["p99"],
        "tpot_mean_ms": found["inter_token_latency"]["avg"],
        "output_tokens_per_s": found["output_token_throughput"]["avg"],
    }


OURS = Tool("Draftproof", _our_command, _read_ours)
VLLM = Tool("vllm bench serve", _vllm_command, _read_vllm)
GUIDELLM = Tool("GuideLLM", _guidellm_command, _read_guidellm)
AIPERF = Tool("AIPerf", _aiperf_command, _read_aiperf)
PEERS = (VLLM, GUIDELLM, AIPERF)


# --- installing --------------------------------------------------------------------------------
def _pins() -> dict[str, str]:
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return {line.partition("==")[0]: line for line in lines if line and line[0] != "#"}


def _installed(name: str) -> str:
    """The command of a tool in the peers' environment. Raises NotHad."""
    path = var_dir() / "peers" / "bin" / name
    if not path.exists():
        raise NotHad(f"{_pins()[name]} could not be installed")
    return str(path)


def install(say: Callable[[str], None] = print) -> None:
    """Make ``var/peers`` as ``peers.txt`` says; what could not be had, ``_installed`` tells."""
    place = var_dir() / "peers"
    stamp, wanted = place / "peers.txt", REQUIREMENTS.read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    say(f"Installing the other load generators into {place} (about 2 GB, once)")
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    if not _pip(place, ["-r", str(REQUIREMENTS)]):
        pins = _pins()
        for name in ("guidellm", "aiperf"):  # what can be had alone
            _pip(place, [pins[name], pins["torch"]])
    stamp.write_text(wanted, encoding="utf-8")


def _pip(place: Path, what: Sequence[str]) -> bool:
    command = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    with (place / "install.log").open("ab") as log:
        done = subprocess.run(
            [*command, "--disable-pip-version-check", *what], stdout=log, stderr=log
        )
    return done.returncode == 0
