"""Real engines on the tiny pair. A start takes most of a minute, so starts are shared."""

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner import counters
from runner.engines.base import Endpoint
from runner.engines.vllm_process import VllmProcess
from runner.models import tiny, tiny_text
from runner.models.tiny import TinyPair
from runner.plan import Arm, Target

HELD_OUT_SEED = 99
"""Another than the training's: the models have not seen these requests."""


class Server:
    """A started engine and a way to talk to it."""

    def __init__(self, engine: VllmProcess, endpoint: Endpoint) -> None:
        self.engine = engine
        self.endpoint = endpoint

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.endpoint.url + path,
            json.dumps({"model": self.endpoint.model, **body}).encode(),
            {
                "Content-Type": "application/json",
                "Authorization": f"Bearer {self.endpoint.api_key}",
            },
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def chat(self, text: str, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **more})

    def metrics(self) -> counters.Metrics:
        return counters.parse(self.engine.metrics_text())


Serve = Callable[[Target, Arm], Any]


@contextmanager
def serving(target: Target, arm: Arm, workdir: Path) -> Iterator[Server]:
    engine = VllmProcess(target, arm, workdir)
    try:
        yield Server(engine, engine.start(lambda: False))
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def pair() -> TinyPair:
    return tiny.prepare()


@pytest.fixture(scope="session")
def target(pair: TinyPair) -> Target:
    return Target("vllm", str(pair.target), dtype="float32", max_model_len=512, enforce_eager=True)


@pytest.fixture
def other_vocabulary(pair: TinyPair, tmp_path: Path) -> Path:
    """A draft model whose vocabulary is not the target's."""
    folder = tmp_path / "draft"
    shutil.copytree(pair.draft, folder)
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] += 64
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def requests() -> list[str]:
    made = tiny_text.examples(seed=HELD_OUT_SEED, count=10)
    return [example.request for example in made]
