"""Hosts with their slots, and the models that an operator registers."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from webapp.fleet import services
from webapp.fleet.models import Slot, TargetModel
from webapp.fleet.selectors import models_offered, plan_target, slots_alive
from webapp.fleet.services import Device, register_host

pytestmark = pytest.mark.django_db


def test_a_host_registers_its_slots_and_says_again_that_it_is_there() -> None:
    gpus = [Device("gpu:0", "NVIDIA H200"), Device("gpu:1", "NVIDIA H200")]
    register_host("box", gpus)
    first = Slot.objects.get(host="box", device="gpu:0")
    Slot.objects.filter(pk=first.pk).update(enabled=False, seen_at=None)
    register_host("box", gpus)
    first.refresh_from_db()
    assert first.seen_at is not None
    assert not first.enabled  # the operator's word stands
    assert [slot.device for slot in slots_alive()] == ["gpu:1"]


def test_gpus_are_those_that_nvidia_smi_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real program in the place of nvidia-smi."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, NVIDIA H200'\necho '1, NVIDIA H200'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert services.find_devices() == (
        Device("gpu:0", "NVIDIA H200"),
        Device("gpu:1", "NVIDIA H200"),
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert services.find_devices() == (Device("gpu:1", "NVIDIA H200"),)
    program.write_text("#!/bin/sh\nexit 9\n")
    assert services.find_devices() == (Device("cpu", "CPU"),)


def test_a_model_is_registered_with_drafts_and_terms(tmp_path: Path) -> None:
    notice = tmp_path / "notice.txt"
    notice.write_text("Terms apply.")
    out = StringIO()
    call_command(
        "register_model", "Small", "--location=/models/small", "--dtype=float32",
        "--max-model-len=2048", "--draft=Tiny=/models/tiny", f"--notice-file={notice}", stdout=out,
    )  # fmt: skip
    assert "Small is registered" in out.getvalue()
    model = TargetModel.objects.get(name="Small")
    assert model.draft_locations == [{"name": "Tiny", "location": "/models/tiny"}]
    assert model.notice == "Terms apply."
    target = plan_target(model)
    assert (target.engine, target.model, target.dtype) == ("vllm", "/models/small", "float32")
    call_command("register_model", "Small", "--location=/models/other", stdout=StringIO())
    assert TargetModel.objects.get(name="Small").location == "/models/other"
    assert models_offered().count() == 1


def test_a_simulated_model_has_its_behaviour_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "behaviour.json"
    path.write_text(json.dumps({"none": {"step_ms": 2.0}}))
    call_command(
        "register_model", "Sim", "--engine=simulator", "--location=sim", f"--simulator={path}",
        stdout=StringIO(),
    )  # fmt: skip
    assert plan_target(TargetModel.objects.get(name="Sim")).simulator == {"none": {"step_ms": 2.0}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--location=/m", "--draft=nameless"], "NAME=LOCATION"),
        (["--location=--trust-remote-code"], "neither a folder"),
        (["--location=/m", "--draft=Tiny=--load-code"], "neither a folder"),
        (["--location=/m", "--notice-file=/nowhere/at/all"], "cannot be read"),
        (["--location=/m", "--max-model-len=0"], "at least 1 token"),
    ],
)
def test_what_cannot_be_a_model_is_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("register_model", "Bad", *arguments, stdout=StringIO())
    assert not TargetModel.objects.exists()
