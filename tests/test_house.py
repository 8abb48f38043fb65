"""What import-linter cannot say: an allow-list for what the pure parts import."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STANDARD = set(sys.stdlib_module_names)


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("calculator", {"calculator", "numpy", "scipy"}),
        # Scripts in runner/models/scripts run in the engine's environment, by its Python.
        ("runner", {"runner", "calculator", "numpy", "scipy"}),
    ],
)
def test_a_part_imports_only_what_it_may(folder: str, allowed: set[str]) -> None:
    foreign = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / folder).rglob("*.py")
        if "scripts" not in path.parts
        for name in _imported(path) - STANDARD - allowed
    }
    assert foreign == set()


def test_what_runs_in_the_engines_environment_is_never_imported() -> None:
    names = {path.stem for path in (ROOT / "runner" / "models" / "scripts").glob("*.py")}
    for path in (ROOT / "runner").rglob("*.py"):
        text = path.read_text()
        if "scripts" not in path.parts:
            assert not any(f"scripts import {name}" in text for name in names), path
            assert "runner.models.scripts" not in text, path
