"""Rows of an ended experiment without measuring one: for pages that only show documents."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.utils import timezone

from calculator.estimate import document_sha256
from calculator.measurement import Measurement as Measured
from calculator.measurement import Outcome
from runner.plan import Arm
from runner.plan_codec import to_document
from tests.webapp import documents
from tests.webapp.lab import ALIKE, make_plan, make_target
from tests.webapp.people import People
from webapp.comparisons.models import Comparison
from webapp.estimates.models import Estimate
from webapp.experiments.measurements import copy_in
from webapp.experiments.models import Experiment, Run, Trial
from webapp.experiments.states import ExperimentState, RunState, TrialState
from webapp.fleet.models import TargetModel
from webapp.samples.models import Sample

ARMS = ("baseline", "ngram", "suffix")
LOADS = (1, 4, 8)


def ready_sample(people: People, **columns: Any) -> Sample:
    values = {
        "name": "October traffic",
        "status": Sample.Status.READY,
        "rows": 60,
        "replayable": 60,
        "different_prompts": 60,
        "categories": {"code editing": 30, "quoting": 30},
        "delete_after": date(2030, 1, 31),
        **columns,
    }
    return Sample.objects.create(workspace=people.workspace, **values)


def ended_experiment(
    people: People, state: str = ExperimentState.DONE, *, target: TargetModel | None = None
) -> Experiment:
    """Two candidate arms, three loads, two runs an arm, with comparisons."""
    target = target or make_target(ALIKE)
    candidates = tuple(Arm(name, name) for name in ARMS[1:])  # type: ignore[arg-type]
    plan = make_plan(target, levels=[(load, 12) for load in LOADS], candidates=candidates)
    experiment = Experiment.objects.create(
        workspace=people.workspace,
        sample=ready_sample(people),
        target=target,
        created_by=people.consultant,
        name="Does it pay?",
        state=state,
        plan=to_document(plan),
        started_at=timezone.now(),
        ended_at=timezone.now(),
        estimated_s=740.0,
    )
    for index, arm in enumerate([*ARMS, *reversed(ARMS)]):
        add_run(experiment, index, arm)
    for arm in ARMS[1:]:
        Comparison.objects.create(
            experiment=experiment,
            arm=arm,
            document=documents.comparison(arm),
            verdict=documents.verdict(),
        )
    return experiment


def add_run(experiment: Experiment, index: int, arm: str, **columns: Any) -> Run:
    run = Run.objects.create(
        experiment=experiment,
        index=index,
        arm=arm,
        block=index // len(ARMS),
        fingerprint={"engine": "simulator", "settings": {"method": arm, "dtype": "float32"}},
        **{"state": RunState.RECORDED, **columns},
    )
    Trial.objects.bulk_create(
        Trial(
            run=run,
            index=position,
            concurrency=load,
            requests=12,
            done=12,
            duration_s=3.0,
            state=TrialState.RECORDED if run.state == RunState.RECORDED else TrialState.PENDING,
        )
        for position, load in enumerate(LOADS)
    )
    return run


def answered(experiment: Experiment) -> None:
    """Twelve requests on every trial of ``experiment``, each of four chunks."""
    for trial in Trial.objects.filter(run__experiment=experiment).select_related("run"):
        slow = 2.0 if trial.run.arm == "baseline" else 1.0
        copy_in(trial.pk, [_answer(f"r{number}", number, slow) for number in range(12)])


def _answer(name: str, number: int, slow: float) -> Measured:
    began = number * 250_000_000
    gaps_us = [round(slow * us) for us in (50_000, 20_000 + number * 1000, 20_000, 20_000)]
    last = began + sum(gaps_us) * 1000
    return Measured(
        name, number, ("quoting", "code editing")[number % 2], Outcome.OK, began, began, last,
        began + gaps_us[0] * 1000, began + gaps_us[0] * 1000, last, 30, 0, 7, 1, 4, "stop",
        first_answer_ns=began + gaps_us[0] * 1000, chunk_gaps_us=gaps_us,
        chunk_bytes=[5, 9, 8, 4], chunk_tokens=[1, 2, 2, 2],
    )  # fmt: skip


def frozen_estimate(people: People, experiment: Experiment | None = None) -> Estimate:
    document = documents.estimate("Switch it on?")
    return Estimate.objects.create(
        workspace=people.workspace,
        created_by=people.consultant,
        experiment_public_id=experiment.public_id if experiment else None,
        arm="ngram",
        title="Switch it on?",
        document=document,
        sha256=document_sha256(document),
    )
