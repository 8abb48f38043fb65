"""Chooses the engine that a target asks for."""

from __future__ import annotations

from pathlib import Path

from runner.engines.base import Engine
from runner.engines.simulator import SimulatorProcess
from runner.engines.vllm_process import VllmProcess
from runner.plan import Arm, Target


def make_engine(target: Target, arm: Arm, workdir: Path) -> Engine:
    """An engine for one run, not yet started; its files go under ``workdir``."""
    if target.engine == "simulator":
        return SimulatorProcess(target, arm, workdir)
    return VllmProcess(target, arm, workdir)
