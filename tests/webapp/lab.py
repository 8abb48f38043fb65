"""Experiments on simulated engines whose right verdict is known, for the tests of the site."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile

from calculator.measurement import Measurement as Measured
from calculator.measurement import Outcome
from runner.plan import Arm, Decision, Design, ExperimentPlan, LoadLevel, Price
from tests.webapp.people import People
from webapp.comparisons.services import analyse
from webapp.experiments import services
from webapp.experiments.execution import execute_next
from webapp.experiments.measurements import copy_in
from webapp.experiments.models import Experiment, Run, Trial
from webapp.experiments.states import ExperimentState, RunState, TrialState
from webapp.fleet.models import TargetModel
from webapp.fleet.selectors import plan_target
from webapp.fleet.services import ModelDetails, register_model
from webapp.samples import services as samples
from webapp.samples.models import Sample

HOST = "lab"
CANARY = "canary-9c42-never-to-be-seen"
STEADY: dict[str, Any] = {"ttft_ms": 10.0, "step_ms": 6.0, "output_tokens": 12, "noise_cv": 0.02}
"""About 80 ms for an answer; less would be fast for the load generator, which then says so."""
TWICE: dict[str, Any] = {**STEADY, "draft_tokens": 3, "acceptance_rate": 0.75}
ALIKE: dict[str, Mapping[str, Any]] = {"none": STEADY, "ngram": STEADY}
FASTER: dict[str, Mapping[str, Any]] = {"none": STEADY, "ngram": TWICE}


def make_sample(people: People, requests: int = 40) -> Sample:
    """A sample read by the site's own reader; every prompt holds the canary."""
    rows = [
        {
            "prompt": f"{CANARY} number {number}",
            "max_tokens": 64,
            "category": ("code", "prose")[number % 2],
        }
        for number in range(requests)
    ]
    content = "\n".join(json.dumps(row) for row in rows).encode()
    file = SimpleUploadedFile("traffic.jsonl", content)
    sample = samples.upload(people.workspace, people.consultant, "Traffic", file)
    samples.read(sample.pk)
    sample.refresh_from_db()
    return sample


def make_target(
    behaviours: Mapping[str, Mapping[str, Any]], name: str = "Simulated"
) -> TargetModel:
    simulator = {method: dict(values) for method, values in behaviours.items()}
    return register_model(
        name, ModelDetails(engine="simulator", location="simulated", simulator=simulator)
    )


def make_plan(
    target: TargetModel,
    *,
    levels: Sequence[tuple[int, int]] = ((1, 6), (2, 6)),
    candidates: Sequence[Arm] = (Arm("ngram", "ngram"),),
    runs_per_arm: int = 2,
    warmup_requests: int = 1,
    **design: Any,
) -> ExperimentPlan:
    return ExperimentPlan(
        target=plan_target(target),
        arms=(Arm("baseline"), *candidates),
        levels=tuple(LoadLevel(*level) for level in levels),
        price=Price(Decimal("2.00"), "test price list", "2026-01-31"),
        design=Design(
            runs_per_arm=runs_per_arm,
            warmup_requests=warmup_requests,
            output_check_requests=2,
            output_check_tokens=8,
            **design,
        ),
        decision=Decision(own_concurrency=levels[0][0]),
    )


def make_experiment(
    people: People,
    behaviours: Mapping[str, Mapping[str, Any]] = ALIKE,
    *,
    sample: Sample | None = None,
    queued: bool = True,
    **plan: Any,
) -> Experiment:
    """An experiment by the services that the pages call; queued unless said otherwise."""
    sample = sample or make_sample(people)
    target = make_target(behaviours)
    experiment = services.draft(
        people.workspace,
        people.consultant,
        sample,
        target,
        "Does it pay?",
        make_plan(target, **plan),
    )
    if queued:
        services.queue(experiment, people.consultant)
    return experiment


def work_all(until: Callable[[], bool] = lambda: False) -> int:
    """Do what a worker would, run after run, in this process; how many runs."""
    runs = 0
    while not until() and execute_next(HOST):
        runs += 1
    return runs


def measure(experiment: Experiment) -> Experiment:
    """All runs and the analysis, in this process."""
    work_all()
    analyse(experiment.pk)
    experiment.refresh_from_db()
    return experiment


def run_of(experiment: Experiment, index: int, attempt: int = 1) -> Run:
    return Run.objects.get(experiment=experiment, index=index, attempt=attempt)


def grown(experiment: Experiment, requests: int) -> None:
    """Every trial of ``experiment`` measured, with ``requests`` requests each."""
    for trial in Trial.objects.filter(run__experiment=experiment).select_related("run"):
        faster = 2 if trial.run.arm == "ngram" else 1
        rows = [
            Measured(
                f"r{n}", n, "code", Outcome.OK, 0, n, n + 10**8 // faster, n + 10**6, n + 10**7,
                n + (10**8 + n * 10**4 % 10**7) // faster, 20, 0, 20, 1, 20, "stop",
            )
            for n in range(requests)
        ]  # fmt: skip
        copy_in(trial.pk, rows)
    Trial.objects.filter(run__experiment=experiment).update(
        state=TrialState.RECORDED, duration_s=requests * 0.1
    )
    experiment.runs.update(state=RunState.RECORDED)
    Experiment.objects.filter(pk=experiment.pk).update(state=ExperimentState.ANALYSING)
