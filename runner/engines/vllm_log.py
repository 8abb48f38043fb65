"""Reads vLLM's log: why it did not start, and with which settings it runs. Pure.

vLLM says what it decided in sentences, which change from version to version. A sentence that is
not found is None ("unknown"), never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PREFIX = re.compile(r"^(\(\w+ pid=\d+\)\s*)?((DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d:. -]+)?\s*")
_PLACE = re.compile(r"^\[[\w./]+:\d+\]\s?")
_CONFIG_ERROR = re.compile(r"ValidationError: \d+ validation errors? for (\w+)")
_EXCEPTION = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Exit)): (.+)$")
_ARGUMENT_ERROR = re.compile(r"^(?:usage: )?[\w./-]+: error: (.+)$")
_VALUE_TAIL = re.compile(r"\s*\[type=\w+, input_value=.*$")
_SECRET = re.compile(r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,})|(?<=Bearer )\S+")
_LONGEST_REASON = 400

_OUT_OF_MEMORY = (
    "out of memory", "cannot allocate memory", "memoryerror", "no available memory for the cache",
    "defaultcpuallocator: can't allocate", "is less than desired",
    "larger than the available kv cache memory", "to allocate", "kv cache is needed",
)  # fmt: skip
_PORT_IN_USE = ("address already in use", "errno 98")
_NO_MODEL = (
    "is not a local folder and is not a valid model identifier",
    "we couldn't connect to",
    "outgoing traffic has been disabled",
    "localentrynotfounderror",
    "offlinemodeisenabled",
    "repositorynotfounderror",
    "gatedrepoerror",
    "cannot find the requested files",
    "can't load the configuration of",
    "invalid repository id or local directory",
)
# Exceptions that mean "this combination of settings is not supported", when vLLM raises them
# while it reads its configuration or builds the model.
_REFUSALS = ("ValueError", "NotImplementedError", "ValidationError")
# What a method needs beside vLLM; another import that fails is a broken installation.
_PACKAGES_OF_METHODS = ("arctic",)


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a start failed. ``refused``: the engine said no to the settings; nothing is broken."""

    code: str
    reason: str
    refused: bool = False


def scrub(line: str, secrets: Sequence[str] = ()) -> str:
    """``line`` without API keys and access tokens."""
    for secret in secrets:
        if secret:
            line = line.replace(secret, "***")
    return _SECRET.sub("***", line)


def bare(line: str) -> str:
    """``line`` without the process, level, time and place that vLLM puts before it."""
    return _PLACE.sub("", _PREFIX.sub("", line)).rstrip()


def explain_failure(lines: Sequence[str], returncode: int | None) -> StartFailure:
    """Turn the log of a start that failed into one sentence. ``lines`` are already scrubbed."""
    said = [bare(line) for line in lines]
    everything = "\n".join(said).lower()
    if any(mark in everything for mark in _PORT_IN_USE):
        return StartFailure(
            "port_in_use",
            "The engine's port is in use by another program; try again or free the port.",
        )
    if any(mark in everything for mark in _NO_MODEL):
        return StartFailure(
            "model_not_found",
            "The engine cannot find the model: it is neither a folder here nor could it be read "
            "from Hugging Face. Check the name, and the network or access token if it is remote.",
        )
    words = _argument_error(said) or _config_error(said)
    if words:
        return StartFailure(
            "refused", f"The engine refuses this combination of settings: {words}", True
        )
    return _by_exception(said, everything, returncode)


def _by_exception(said: Sequence[str], everything: str, returncode: int | None) -> StartFailure:
    found = _root_exception(said)
    kind, words = found if found else ("", "")
    if any(mark in words.lower() for mark in _OUT_OF_MEMORY) or (
        "out of memory" in everything or "defaultcpuallocator" in everything
    ):
        return StartFailure(
            "out_of_memory",
            "The engine ran out of memory: choose a smaller model, a shorter context "
            f"(max_model_len) or a machine with more memory. It said: {words or 'out of memory'}",
        )
    if returncode == 137:
        return StartFailure(
            "killed",
            "The engine was killed while it started, most often because the machine ran out of "
            "memory: choose a smaller model or a machine with more memory.",
        )
    name = kind.rpartition(".")[2]
    missing = name in ("ImportError", "ModuleNotFoundError")
    if missing and not any(package in words.lower() for package in _PACKAGES_OF_METHODS):
        return StartFailure(
            "engine_broken",
            "The engine's installation does not work; install it again with: python -m runner "
            f"engine install. It said: {words}",
        )
    if missing or name in _REFUSALS:
        return StartFailure(
            "refused", f"The engine refuses this combination of settings: {words}", True
        )
    ending = f" It said: {words}" if words else " Its last log lines say more."
    return StartFailure(
        "died_at_start", f"The engine ended with code {returncode} while it started.{ending}"
    )


def _argument_error(said: Sequence[str]) -> str | None:
    for line in reversed(said):
        match = _ARGUMENT_ERROR.match(line)
        if match:
            return _sentence(match[1])
    return None


def _config_error(said: Sequence[str]) -> str | None:
    """The sentence of a pydantic ValidationError, which stands on the line below its head."""
    for number, line in enumerate(said):
        head = _CONFIG_ERROR.search(line)
        if head is None:
            continue
        for below in said[number + 1 : number + 6]:
            text = _VALUE_TAIL.sub("", below).strip()
            if text.startswith(("Value error,", "Assertion failed,")):
                return _sentence(text.partition(",")[2])
            if _VALUE_TAIL.search(below):
                return _sentence(f"{head[1]}: {text}")
    return None


def _root_exception(said: Sequence[str]) -> tuple[str, str] | None:
    """The first exception that names a cause: later ones are only its echo in other processes."""
    echoes = ("Engine core initialization failed", "WorkerProc initialization failed",
              "Worker failed with error")  # fmt: skip
    found = None
    for line in said:
        match = _EXCEPTION.match(line.strip())
        if match and not any(echo in match[2] for echo in echoes):
            found = found or (match[1], _sentence(match[2]))
    return found


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."


def effective_settings(text: str) -> dict[str, Any]:
    """What the engine says that it runs with; None where the log does not say."""
    config = _engine_line(text)
    return {
        "dtype": _first(r"dtype=torch\.(\w+)", config),
        "max_model_len": _number(r"max_seq_len=(\d+)", config),
        "enforce_eager": _flag(r"enforce_eager=(True|False)", config),
        "prefix_caching": _flag(r"enable_prefix_caching=(True|False)", config),
        "chunked_prefill": _flag(r"enable_chunked_prefill=(True|False)", config),
        "tensor_parallel_size": _number(r"tensor_parallel_size=(\d+)", config),
        "quantization": (_first(r"quantization=(\w+)", config) or "").replace("None", "none")
        or None,
        "speculation": _speculation(config),
        "runner": _runner(text),
        "async_scheduling": _async_scheduling(text),
        "attention_backend": _first(r"Using (\w+) (?:attention )?backend", text),
        "kv_cache_tokens": _kv_tokens(text),
        "cpu_cores_bound": _cores(text),
    }


def _engine_line(text: str) -> str:
    match = re.search(r"Initializing a V1 LLM engine.*", text)
    return match[0] if match else ""


def _speculation(config: str) -> str | None:
    """As the engine names it, e.g. ``SpeculativeConfig(method='ngram', ...)``; "none" without."""
    match = re.search(r"speculative_config=(None|\w+\([^)]*\))", config)
    if match is None:
        return None
    return "none" if match[1] == "None" else match[1]


def _runner(text: str) -> str | None:
    if re.search(r"[Uu]sing the V1 model runner", text):
        return "V1"
    return "V2" if "Using V2 Model Runner" in text else None


def _async_scheduling(text: str) -> bool | None:
    """Off where the log says so; on the CPU vLLM turns it off without a word."""
    if re.search(r"[Aa]sync(hronous)? scheduling (is|will be) disabled", text):
        return False
    if re.search(r"Asynchronous scheduling is enabled", text):
        return True
    return False if "cpu_worker.py" in text or "cpu_model_runner.py" in text else None


def _kv_tokens(text: str) -> int | None:
    found = _first(r"KV cache size: ([\d,]+) tokens", text)
    return int(found.replace(",", "")) if found else None


def _cores(text: str) -> str | None:
    return _first(r"core ids=\[([\d, ]*)\]", text)


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None


def _number(pattern: str, text: str) -> int | None:
    found = _first(pattern, text)
    return int(found) if found else None


def _flag(pattern: str, text: str) -> bool | None:
    found = _first(pattern, text)
    return None if found is None else found == "True"


def cache_config(metrics: str) -> Mapping[str, str]:
    """The labels of ``vllm:cache_config_info``: KV blocks, block size and more."""
    match = re.search(r"^vllm:cache_config_info\{(.*)\}", metrics, re.MULTILINE)
    return dict(re.findall(r'(\w+)="([^"]*)"', match[1])) if match else {}
