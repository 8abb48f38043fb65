"""What people do with experiments: draft, start, cancel, measure again what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from django.db import transaction
from django.db.models.functions import Now

from runner.plan import (
    ExperimentPlan,
    PlanError,
    PlannedRun,
    RequestInfo,
    estimate_seconds,
    schedule,
    validate,
)
from runner.plan_codec import from_document, to_document
from webapp.accounts.models import User, Workspace
from webapp.core import audit
from webapp.core.errors import Refusal
from webapp.core.nudge import nudge_on_commit
from webapp.experiments.lease import move_experiment
from webapp.experiments.models import Experiment, Run, Trial
from webapp.experiments.settlement import EXECUTE_NEXT, settle
from webapp.experiments.states import RUN_ACTIVE, ExperimentState, RunState
from webapp.experiments.succession import add_successor
from webapp.fleet.models import TargetModel
from webapp.fleet.selectors import plan_target
from webapp.samples.models import Sample

ENDED_AND_COMPLETE = "This experiment has ended; start a new one to measure again."
_RESUMABLE = (ExperimentState.CANCELLED, ExperimentState.FAILED, ExperimentState.PARTIAL)


def draft(
    workspace: Workspace,
    user: User,
    sample: Sample,
    target: TargetModel,
    name: str,
    plan: ExperimentPlan,
) -> Experiment:
    """A new experiment, checked and not yet started. ``plan.target`` is what ``target`` says.

    Refused: a plan, sample or draft model that cannot be measured, with what to change.
    """
    if not name.strip():
        raise Refusal("Give the experiment a name.")
    if sample.workspace_id != workspace.pk:
        raise Refusal("Choose a sample of this workspace.")
    if not target.enabled:
        raise Refusal("This model is no longer offered; choose another one.")
    plan = replace(plan, target=plan_target(target))
    _check(plan, sample, target)
    with transaction.atomic():
        experiment = Experiment.objects.create(
            workspace=workspace,
            sample=sample,
            target=target,
            created_by=user,
            name=name.strip()[:200],
            plan=to_document(plan),
            estimated_s=estimate_seconds(plan),
        )
        audit.record(user, workspace, "experiment.drafted", experiment)
    return experiment


def queue(experiment: Experiment, user: User | None) -> None:
    """Start a draft: all its runs and trials as rows, then a nudge. Starting twice is once."""
    with transaction.atomic():
        locked = _lock(experiment)
        if locked.state == ExperimentState.DRAFT:
            plan = from_document(locked.plan)
            runs = _check(plan, _lock_sample(locked), locked.target)
            _create_runs(locked, runs)
            move_experiment(locked.pk, ExperimentState.QUEUED)
            audit.record(user, locked.workspace, "experiment.queued", locked, runs=len(runs))
            nudge_on_commit(EXECUTE_NEXT)
    experiment.refresh_from_db()


def cancel(experiment: Experiment, user: User | None) -> None:
    """Stop it; what was recorded stays. A run under way notices within seconds. Twice is once."""
    with transaction.atomic():
        locked = _lock(experiment)
        if locked.state == ExperimentState.DRAFT:
            raise Refusal("This experiment has not started, so there is nothing to cancel.")
        if locked.state == ExperimentState.ANALYSING:
            raise Refusal("Everything is measured; the comparison is being computed.")
        if move_experiment(locked.pk, ExperimentState.CANCELLED, reason="", ended_at=Now()):
            locked.runs.filter(state=RunState.PENDING).update(
                state=RunState.CANCELLED,
                reason="Cancelled before it started.",
                ended_at=Now(),
            )
            audit.record(user, locked.workspace, "experiment.cancelled", locked)
        elif locked.state != ExperimentState.CANCELLED:
            raise Refusal(ENDED_AND_COMPLETE)
    experiment.refresh_from_db()


def resume(experiment: Experiment, user: User | None) -> None:
    """Measure what is missing; recorded trials and refused arms stay as they are."""
    with transaction.atomic():
        locked = _lock(experiment)
        if locked.state in (ExperimentState.QUEUED, ExperimentState.RUNNING):
            experiment.refresh_from_db()
            return
        if locked.state not in _RESUMABLE:
            raise Refusal(ENDED_AND_COMPLETE)
        if locked.runs.filter(state__in=RUN_ACTIVE).exists():
            raise Refusal("A run of this experiment is still stopping; try again in some seconds.")
        _require_text(_lock_sample(locked))
        move_experiment(locked.pk, ExperimentState.QUEUED, reason="", ended_at=None)
        added = sum(add_successor(run, losses=0) is not None for run in _resumable_runs(locked))
        audit.record(user, locked.workspace, "experiment.resumed", locked, runs=added)
    settle(locked.pk)
    experiment.refresh_from_db()


def finish(experiment_id: int, state: ExperimentState, reason: str) -> bool:
    """The end of an analysis; False when the experiment was not being analysed (any more)."""
    return move_experiment(
        experiment_id,
        state,
        only_from=(ExperimentState.ANALYSING,),
        reason=reason,
        ended_at=Now(),
    )


def _lock(experiment: Experiment) -> Experiment:
    return Experiment.objects.select_for_update().get(pk=experiment.pk)


def _lock_sample(experiment: Experiment) -> Sample:
    """Held until the rows stand, so that the text is not deleted between look and leap."""
    return Sample.objects.select_for_update().get(pk=experiment.sample_id)


def _check(plan: ExperimentPlan, sample: Sample, target: TargetModel) -> tuple[PlannedRun, ...]:
    """The schedule's shape, from the sample's counts alone. Raises Refusal."""
    problems = validate(plan)
    if problems:
        raise Refusal(problems[0])
    _require_text(sample)
    _check_drafts(plan, target)
    # Which requests go where is decided from the text's own ids when a run starts; how many runs
    # and trials there are, and in which order, does not depend on them.
    counted = [RequestInfo(str(number)) for number in range(sample.different_prompts)]
    try:
        return schedule(plan, counted)
    except PlanError as error:
        raise Refusal(str(error)) from None


def _require_text(sample: Sample) -> None:
    if sample.status == Sample.Status.DELETED:
        raise Refusal("The text of this sample was deleted; upload it again to measure with it.")
    if sample.status != Sample.Status.READY:
        raise Refusal("This sample has not been read; wait for it, or choose another one.")


def _check_drafts(plan: ExperimentPlan, target: TargetModel) -> None:
    """The site names no paths: a draft model must be one that the operator gave this target."""
    offered = {draft["location"] for draft in target.draft_locations}
    for arm in plan.arms:
        if arm.method == "draft_model" and arm.parameters.get("model") not in offered:
            raise Refusal(
                f"Arm {arm.name}: choose one of the draft models that are registered for "
                f"{target.name}."
            )


def _create_runs(experiment: Experiment, planned: Iterable[PlannedRun]) -> None:
    runs = Run.objects.bulk_create(
        Run(experiment=experiment, index=item.index, arm=item.arm.name, block=item.block)
        for item in planned
    )
    Trial.objects.bulk_create(
        Trial(
            run=run,
            index=trial.index,
            concurrency=trial.level.concurrency,
            requests=trial.level.requests,
        )
        for run, item in zip(runs, planned, strict=True)
        for trial in item.trials
    )


def _resumable_runs(experiment: Experiment) -> list[Run]:
    """The latest attempt of each index, but for those of arms that the engine refused."""
    latest = {run.index: run for run in experiment.runs.order_by("attempt")}
    return [run for run in latest.values() if run.state != RunState.UNSUPPORTED]
