"""What engines may serve and where they can run."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, cast

from django.db.models import QuerySet
from django.utils import timezone

from runner.plan import Target
from webapp.fleet.models import Slot, TargetModel

ALIVE_FOR = timedelta(minutes=2)


def models_offered() -> QuerySet[TargetModel]:
    """What may be chosen for a new experiment."""
    return TargetModel.objects.filter(enabled=True)


def slots_alive() -> QuerySet[Slot]:
    """Slots whose worker was heard of lately."""
    return Slot.objects.filter(enabled=True, seen_at__gt=timezone.now() - ALIVE_FOR)


def plan_target(model: TargetModel) -> Target:
    """``model`` as the runner's plan knows it."""
    return Target(
        engine=cast(Literal["vllm", "simulator"], model.engine),
        model=model.location,
        dtype=model.dtype,
        max_model_len=model.max_model_len,
        enforce_eager=model.enforce_eager,
        simulator=model.simulator,
    )
