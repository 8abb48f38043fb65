"""Arms as data: which speculation methods we offer, with which parameters, and the engine's words.

An allow-list. Whatever is not named here never reaches an engine's command line: an experiment is
filled in by people on a web page, and vLLM has settings that load code. Pure: no file is looked at.

The parameters are those of vLLM's ``--speculative-config``; ranges are ours, narrower than vLLM's
where a value can only harm (a draft of 100 tokens is never accepted).
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from runner.plan import Arm, Target

DTYPES = ("auto", "float32", "bfloat16", "float16")
SERVED_NAME = "target"
"""What requests call the model; a folder name would tell more than they need to know."""

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_LONGEST_NAME = 400


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter of a method. ``minimum`` and ``maximum`` are inclusive; None for text."""

    name: str
    label: str
    type: Literal["int", "float", "str"]
    default: int | float | str | None
    """None: there is no sensible default, a value must be given."""
    minimum: int | float | None
    maximum: int | float | None
    help: str


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A speculation method that an arm may use."""

    label: str
    advice: str
    changes_output: bool
    """Whether the method is lossy by design. All of ours promise not to be; it is tested anyway."""
    fields: tuple[Field, ...]


METHODS: dict[str, MethodSpec] = {
    "none": MethodSpec(
        label="No speculation",
        advice="The baseline: one token per step, what the team runs today.",
        changes_output=False,
        fields=(),
    ),
    "ngram": MethodSpec(
        label="N-gram lookup",
        advice=(
            "Drafts are copied from the prompt and the answer so far. Costs nothing to try: no "
            "second model. Gains on code edits, quoting and extraction; little on free writing."
        ),
        changes_output=False,
        fields=(
            Field(
                "num_speculative_tokens", "Tokens per draft", "int", 4, 1, 32,
                "How many tokens are proposed at once. More gain when they are right; "
                "more wasted work when they are not.",
            ),
            Field(
                "prompt_lookup_min", "Shortest match", "int", 2, 1, 32,
                "A draft needs at least this many equal tokens before it. Small values draft "
                "often and wrongly.",
            ),
            Field(
                "prompt_lookup_max", "Longest match", "int", 4, 1, 32,
                "The longest run of equal tokens that is looked for. Not below the shortest.",
            ),
        ),
    ),
    "suffix": MethodSpec(
        label="Suffix tree",
        advice=(
            "Drafts come from a tree of earlier answers and the prompt. Good where answers repeat "
            "one another (agents, boilerplate). It learns while it serves: a long run gains more."
        ),
        changes_output=False,
        fields=(
            Field(
                "num_speculative_tokens", "Tokens per draft, at most", "int", 16, 1, 32,
                "The engine drafts fewer where the tree is unsure.",
            ),
            Field(
                "suffix_decoding_max_tree_depth", "Tree depth", "int", 24, 1, 64,
                "The longest sequence that the tree remembers, in tokens.",
            ),
            Field(
                "suffix_decoding_max_cached_requests", "Answers remembered", "int",
                10_000, 0, 1_000_000,
                "How many earlier answers the tree keeps. 0: only the request's own prompt.",
            ),
            Field(
                "suffix_decoding_max_spec_factor", "Draft length per matched token", "float",
                1.0, 0.0, 8.0,
                "A match of n tokens allows a draft of n times this factor.",
            ),
            Field(
                "suffix_decoding_min_token_prob", "Least probability", "float", 0.1, 0.0, 1.0,
                "A token is drafted only when the tree thinks it at least this likely.",
            ),
        ),
    ),
    "draft_model": MethodSpec(
        label="Draft model",
        advice=(
            "A small model of the same vocabulary writes the drafts. Works on any text, costs "
            "memory and time for each draft: it must be several times faster than the target."
        ),
        changes_output=False,
        fields=(
            Field(
                "model", "Draft model", "str", None, None, None,
                "A local folder or a Hugging Face id; same vocabulary as the target.",
            ),
            Field(
                "num_speculative_tokens", "Tokens per draft", "int", 3, 1, 16,
                "The draft model runs once for each of them, before the target checks them all.",
            ),
        ),
    ),
}  # fmt: skip


def defaults(method: str) -> dict[str, Any]:
    """The parameters that ``method`` has when nobody says otherwise."""
    return {f.name: f.default for f in METHODS[method].fields if f.default is not None}


def validate_arm(arm: Arm) -> list[str]:
    """What is wrong with ``arm``, one sentence each; empty when an engine may be given it."""
    spec = METHODS.get(arm.method)
    if spec is None:
        return [f"{_shown(arm.method)} is no method; choose one of {', '.join(METHODS)}."]
    known = {field.name: field for field in spec.fields}
    problems = [
        f"{spec.label} has no parameter {_shown(name)}; "
        + (f"it has {', '.join(known)}." if known else "it has none.")
        for name in arm.parameters
        if name not in known
    ]
    for name, field in known.items():
        problems += _field_problems(spec, field, arm.parameters.get(name, field.default))
    if not problems and arm.method == "ngram":
        problems += _lookup_problems({**defaults("ngram"), **arm.parameters})
    return problems


def _field_problems(spec: MethodSpec, field: Field, value: Any) -> Iterable[str]:
    name = f"{spec.label}: {field.label.lower()} ({field.name})"
    if value is None:
        yield f"{name} must be given."
    elif field.type == "str":
        problem = model_name_problem(value)
        if problem:
            yield f"{name} {problem}"
    elif not _is_number(value, field.type):
        kind = "a whole number" if field.type == "int" else "a number"
        yield f"{name} must be {kind}, not {_shown(value)}."
    elif not (field.minimum or 0) <= value <= (field.maximum or 0):
        yield f"{name} must be between {field.minimum} and {field.maximum}, not {value}."


def _is_number(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return False
    if kind == "int":
        return isinstance(value, int)
    return isinstance(value, (int, float)) and math.isfinite(value)


def _lookup_problems(parameters: Mapping[str, Any]) -> Iterable[str]:
    shortest, longest = parameters["prompt_lookup_min"], parameters["prompt_lookup_max"]
    if shortest > longest:
        yield (
            f"N-gram lookup: the shortest match ({shortest}) must not be above the "
            f"longest ({longest})."
        )


def model_name_problem(name: Any) -> str | None:
    """Why ``name`` can be neither a local folder nor a hub id, as the end of a sentence; or None.

    Only the form is looked at: a name that begins with a dash would read as an option, and one
    with an address or control characters names no model.
    """
    if not isinstance(name, str) or not name.strip():
        return "must name a local folder or a Hugging Face id."
    if len(name) > _LONGEST_NAME or not name.isprintable():
        return f"must be printable and of at most {_LONGEST_NAME} characters."
    if is_path(name) or _HUB_ID.fullmatch(name):
        return None
    return (
        f"is {_shown(name)}, which is neither a folder (begin with / or ./) "
        "nor a Hugging Face id such as owner/name."
    )


def is_path(name: str) -> bool:
    """Whether ``name`` means a local folder by its form."""
    return name.startswith(("/", "./", "../", "~/"))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def speculative_config(arm: Arm) -> dict[str, Any] | None:
    """vLLM's ``--speculative-config`` for ``arm``; None for the baseline.

    Every parameter is spelled out, so that a default that changes between two engine versions
    does not change what was measured. Raises ValueError when the arm is not valid.
    """
    problems = validate_arm(arm)
    if problems:
        raise ValueError(problems[0])
    if arm.method == "none":
        return None
    return {"method": arm.method, **defaults(arm.method), **arm.parameters}


def serving_arguments(target: Target, arm: Arm) -> list[str]:
    """What the measured server and the deployed one have in common, as ``--key=value``.

    One word per setting: a value that begins with a dash can't become an option of its own.
    ``--trust-remote-code`` is never given: a model folder must not bring code with it.
    """
    arguments = [f"--dtype={target.dtype}"]
    if target.max_model_len is not None:
        arguments.append(f"--max-model-len={target.max_model_len}")
    if target.enforce_eager:
        arguments.append("--enforce-eager")
    config = speculative_config(arm)
    if config is not None:
        arguments.append(f"--speculative-config={json.dumps(config, separators=(',', ':'))}")
    return arguments


def engine_arguments(
    target: Target, arm: Arm, *, port: int, served_name: str = SERVED_NAME, seed: int = 0
) -> list[str]:
    """The arguments of vLLM's API server for one start. Raises ValueError for what is not allowed.

    The API key is no argument: every user of the machine can read a command line.
    """
    problem = model_name_problem(target.model)
    if problem:
        raise ValueError(f"The target model {problem}")
    if target.dtype not in DTYPES:
        raise ValueError(f"The dtype must be one of {', '.join(DTYPES)}.")
    return [
        f"--model={target.model}",
        f"--served-model-name={served_name}",
        "--host=127.0.0.1",  # loopback only: nobody else measures or uses this server
        f"--port={port}",
        f"--seed={seed}",
        *serving_arguments(target, arm),
        # Tells cached prompt tokens in `usage`: an unwanted prefix-cache hit shows.
        "--enable-prompt-tokens-details",
        # One log line per request costs time at high load and says nothing about the engine.
        "--disable-uvicorn-access-log",
    ]


def deploy_command(target: Target, arm: Arm) -> str:
    """The command that starts this arm elsewhere, quoted for a POSIX shell.

    A local folder is shown by its last name only: the page it stands on may be shared.
    """
    parameters = dict(arm.parameters)
    if isinstance(parameters.get("model"), str):
        parameters["model"] = _shown_model(parameters["model"])
    shown = Arm(arm.name, arm.method, parameters)
    words = ["vllm", "serve", _shown_model(target.model), *serving_arguments(target, shown)]
    return shlex.join(words)


def _shown_model(name: str) -> str:
    return f"./{PurePosixPath(name).name}" if is_path(name) else name
