"""What is configurable, measurable or a reason code is documented, and this says so."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from calculator import comparison, outputs, reasons, validity
from calculator.answers import NOT_SCORED
from calculator.measurement import MARKS, Measurement, Outcome
from webapp import env

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
TARGETS = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def _row(variable: env.Variable[object]) -> str:
    shown = f"`{variable.default}`"
    for value, word in ((None, "unset"), ((), "none"), (True, "1"), (False, "0")):
        if variable.default is value or variable.default == value == ():
            shown = word
    if variable.name == env.VAR_DIR.name:
        shown = "`var` in the project"
    name = f"`{variable.name}`" + (" (secret)" if variable.secret else "")
    return f"| {name} | {variable.kind} | {shown} | {variable.doc} |"


def test_every_environment_variable_is_documented_as_the_code_has_it() -> None:
    text = (DOCS / "configuration.md").read_text()
    wanted = [_row(variable) for variable in env.VARIABLES]
    missing = [row for row in wanted if row not in text]
    assert missing == [], "docs/configuration.md lacks:\n" + "\n".join(missing)
    told = re.findall(r"^\| `([A-Z_]+)`", text, re.MULTILINE)
    assert told == [variable.name for variable in env.VARIABLES]


def test_every_metric_and_time_stamp_is_documented() -> None:
    text = (DOCS / "metrics.md").read_text()
    derived = [name for name in vars(Measurement) if name.endswith("_ms")]
    stamps = [field.name for field in fields(Measurement) if field.name.endswith("_ns")]
    assert derived
    assert [name for name in derived + stamps if f"| `{name}` |" not in text] == []


def test_every_outcome_is_documented() -> None:
    text = (DOCS / "metrics.md").read_text()
    assert [outcome for outcome in Outcome if f"| `{outcome.value}` |" not in text] == []


def test_every_reason_is_documented_in_the_words_of_the_code() -> None:
    text = (DOCS / "metrics.md").read_text()
    verdicts = {code: kind.help for code, kind in reasons.REASONS.items()}
    tables = (validity.REASONS, comparison.PROBLEMS, MARKS, verdicts, outputs.WHY, NOT_SCORED)
    for table in tables:
        rows = [f"| `{code}` | {meaning} |" for code, meaning in table.items()]
        assert [row for row in rows if row not in text] == []
    checks = get_args(get_type_hints(outputs.OutputCheck)["status"])
    assert [status for status in checks if f"| `{status}` |" not in text] == []


def test_decisions_are_numbered_without_a_gap_and_say_three_things() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    for path in DECISIONS:
        text = path.read_text()
        assert text.startswith(f"# {int(path.name[:4])}. ")
        for word in ("Context", "Decision", "Consequence"):
            assert text.count(f"**{word}.**") == 1, path.name


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_make_targets_and_paths_named_in_the_docs_exist(path: Path) -> None:
    text = path.read_text()
    for target in re.findall(r"`make ([a-z]+)", text):
        assert target in TARGETS, f"{path.name} names make {target}"
    for named in re.findall(r"`((?:webapp|runner|calculator|docs|tests)/[\w./]+\.\w+)`", text):
        assert (ROOT / named).exists(), f"{path.name} names {named}"
    for named in re.findall(r"\(docs/([\w./]+)\)", text):
        assert (DOCS / named).exists(), f"{path.name} names docs/{named}"


def test_locks_hold_every_dependency_with_hashes_and_no_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    site, tools = (
        (ROOT / name).read_text() for name in ("requirements.lock", "requirements-dev.lock")
    )
    for text in (site, tools):
        assert "://" not in text
        pins = re.findall(r"^([a-z0-9-]+)==\S+ \\\n    --hash=sha256:", text, re.MULTILINE)
        assert len(pins) == len(re.findall(r"^[a-z0-9-]+", text, re.MULTILINE))
    for lines, text in (
        (project["dependencies"], site),
        (project["dependencies"] + project["optional-dependencies"]["dev"], tools),
    ):
        names = [re.split(r"[\[>=<]", line)[0].lower() for line in lines]
        assert [name for name in names if not re.search(rf"^{name}==", text, re.MULTILINE)] == []
    # What the site runs on is what the tools tested.
    assert set(re.findall(r"^\S+==\S+", site, re.MULTILINE)) <= set(
        re.findall(r"^\S+==\S+", tools, re.MULTILINE)
    )
