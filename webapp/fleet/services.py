"""Registers the places where engines run and the models they may serve."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from runner.arms import DTYPES, model_name_problem
from webapp.core import audit
from webapp.core.errors import Refusal
from webapp.fleet.models import Slot, TargetModel

_ASK_GPUS = ("--query-gpu=index,name", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class Device:
    """One place on this machine where one engine can run: ``cpu`` or ``gpu:0``."""

    device: str
    label: str


def this_host() -> str:
    return socket.gethostname()[:120]


@cache
def devices() -> tuple[Device, ...]:
    """This machine's devices, looked for once a process."""
    return find_devices()


def find_devices() -> tuple[Device, ...]:
    """The GPUs that nvidia-smi names and CUDA_VISIBLE_DEVICES allows; without any, the CPU."""
    return _gpus() or (Device("cpu", "CPU"),)


def _gpus() -> tuple[Device, ...]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        told = subprocess.run(
            [command, *_ASK_GPUS], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [line.partition(",") for line in told.splitlines() if "," in line]
    found = [(index.strip(), name.strip()) for index, _, name in rows]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        numbers = {number.strip() for number in allowed.split(",")}
        found = [item for item in found if item[0] in numbers]
    return tuple(Device(f"gpu:{index}", name) for index, name in found)


def register_host(host: str, found: Sequence[Device] | None = None) -> None:
    """Say that ``host`` is here now, with its slots. An operator's ``enabled`` is left alone."""
    for item in devices() if found is None else found:
        slots = Slot.objects.filter(host=host, device=item.device)
        if not slots.update(seen_at=Now(), label=item.label[:120]):
            Slot.objects.get_or_create(
                host=host,
                device=item.device,
                defaults={"label": item.label[:120], "seen_at": Now()},
            )


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """What an operator says of a model. ``drafts`` maps shown names to folders or ids."""

    engine: str
    location: str
    dtype: str = "auto"
    revision: str = ""
    max_model_len: int | None = None
    enforce_eager: bool = False
    drafts: dict[str, str] | None = None
    simulator: dict[str, Any] | None = None
    notice: str = ""


def register_model(name: str, details: ModelDetails) -> TargetModel:
    """Add a model, or bring the one of that name up to date. Raises Refusal."""
    _check_model(name, details)
    drafts = [{"name": key, "location": value} for key, value in (details.drafts or {}).items()]
    with transaction.atomic():
        model, created = TargetModel.objects.update_or_create(
            name=name,
            defaults={
                "engine": details.engine,
                "location": details.location,
                "revision": details.revision,
                "dtype": details.dtype,
                "max_model_len": details.max_model_len,
                "enforce_eager": details.enforce_eager,
                "draft_locations": drafts,
                "simulator": details.simulator or {},
                "notice": details.notice,
                "enabled": True,
            },
        )
        action = "model.registered" if created else "model.changed"
        audit.record(None, None, action, model, name=name, engine=details.engine)
    return model


def _check_model(name: str, details: ModelDetails) -> None:
    if not name.strip() or len(name) > 120:
        raise Refusal("Give the model a name of 1 to 120 characters.")
    if details.engine not in TargetModel.Engine.values:
        raise Refusal(f"The engine must be one of: {', '.join(TargetModel.Engine.values)}.")
    if not details.location.strip() or len(details.location) > 400:
        raise Refusal("Give the model's location: a local folder or a Hugging Face id.")
    for location in (details.location, *(details.drafts or {}).values()):
        problem = model_name_problem(location)
        if problem and details.engine == TargetModel.Engine.VLLM:
            raise Refusal(f"The location {problem}")
    if details.dtype not in DTYPES:
        raise Refusal(f"The dtype must be one of: {', '.join(DTYPES)}.")
    if details.max_model_len is not None and details.max_model_len < 1:
        raise Refusal("The longest context must be at least 1 token.")
