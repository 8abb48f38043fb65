"""One address for every page and state of the site, with rows behind each."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse
from django.utils import timezone

from tests.webapp.lab import ALIKE, make_plan, make_target
from tests.webapp.people import People
from tests.webapp.rows import add_run, answered, ended_experiment, frozen_estimate, ready_sample
from webapp.accounts.models import User
from webapp.comparisons.models import Comparison
from webapp.estimates import services as estimates
from webapp.experiments import services as experiments
from webapp.experiments.models import Experiment, Run, Trial
from webapp.experiments.states import ExperimentState, RunState, TrialState
from webapp.fleet.models import TargetModel
from webapp.samples.models import Sample

LOG = [f"INFO [engine] step {n}: 20.1 tokens/s, 1 request running" for n in range(12)]


@dataclass(frozen=True)
class Place:
    address: str
    user: User | None = None


def places(people: People) -> dict[str, Place]:
    """Every page by name. The stranger's workspace is empty."""
    me = people.consultant
    target = make_target(ALIKE)
    TargetModel.objects.filter(pk=target.pk).update(
        notice="These weights come with terms of use.",
        draft_locations=[{"name": "Small draft", "location": "/models/small"}],
    )
    target.refresh_from_db()
    done = ended_experiment(people, target=target)
    answered(done)
    estimate = frozen_estimate(people, done)
    _, token = estimates.share(estimate, me)
    samples = {
        status: ready_sample(people, status=status, **columns)
        for status, columns in _sample_states().items()
    }
    places = {
        "sign-in": Place("/sign-in"),
        "workspaces": Place("/", me),
        "no-workspace-page": Place("/w/00000000-0000-0000-0000-000000000000/", me),
        "workspace": Place(reverse("workspace", args=[people.workspace.public_id]), me),
        "workspace-empty": Place(
            reverse("workspace", args=[people.other_workspace.public_id]), people.stranger
        ),
        "upload": Place(reverse("sample-new", args=[people.workspace.public_id]), me),
        "new-experiment": Place(reverse("experiment-new", args=[people.workspace.public_id]), me),
        "estimate": Place(reverse("estimate", args=[estimate.public_id]), me),
        "shared": Place(reverse("shared", args=[token])),
        "shared-gone": Place(reverse("shared", args=["nothing"])),
    }
    for status, sample in samples.items():
        places[f"sample-{status}"] = Place(reverse("sample", args=[sample.public_id]), me)
    ended = {
        "draft": _draft(people, target),
        "running": _running(people, target),
        "result": done,
        "result-partial": _partial(people, target),
    }
    for name, experiment in ended.items():
        places[name] = Place(reverse("experiment", args=[experiment.public_id]), me)
    cancel = reverse("experiment-cancel", args=[ended["running"].public_id])
    evidence = reverse("experiment-evidence", args=[done.public_id])
    one = reverse("experiment-request", args=[done.public_id, 0, 0, 3])
    return {
        **places,
        "cancel": Place(cancel, me),
        "evidence": Place(evidence, me),
        "request": Place(one, me),
    }


def _sample_states() -> dict[str, dict[str, object]]:
    return {
        Sample.Status.READY: {
            "format": "openai_chat",
            "rows": 77,
            "skipped": {"embedding_request": 12},
            "rejected": [{"line": 17, "reason": "The field messages is missing."}],
            "rejected_count": 5,
            "warnings": ["12 rows have no limit of tokens; the experiment's cap applies."],
        },
        Sample.Status.READING: {"categories": {}},
        Sample.Status.REFUSED: {"reason": "Line 1 is not valid JSON: each line is one object."},
        Sample.Status.DELETED: {},
    }


def _draft(people: People, target: TargetModel) -> Experiment:
    sample = ready_sample(people, name="November traffic")
    plan = make_plan(target, levels=((1, 12), (4, 16)), runs_per_arm=3)
    return experiments.draft(
        people.workspace, people.consultant, sample, target, "Is it worth it?", plan
    )


def _running(people: People, target: TargetModel) -> Experiment:
    experiment = ended_experiment(people, ExperimentState.RUNNING, target=target)
    Comparison.objects.filter(experiment=experiment).delete()
    Experiment.objects.filter(pk=experiment.pk).update(ended_at=None)
    runs = Run.objects.filter(experiment=experiment)
    runs.filter(index__gte=4).update(state=RunState.PENDING)
    now = timezone.now()
    runs.filter(index=3).update(state=RunState.MEASURING, started_at=now, log_tail=LOG)
    Trial.objects.filter(run__experiment=experiment, run__index__gte=3).update(
        state=TrialState.PENDING, done=0
    )
    Trial.objects.filter(run__experiment=experiment, run__index=3, index=0).update(
        state=TrialState.RUNNING, done=7
    )
    return experiment


def _partial(people: People, target: TargetModel) -> Experiment:
    experiment = ended_experiment(people, ExperimentState.PARTIAL, target=target)
    Comparison.objects.filter(experiment=experiment, arm="suffix").delete()
    Run.objects.filter(experiment=experiment, arm="suffix").update(
        state=RunState.UNSUPPORTED,
        reason="Suffix decoding needs a package that this engine lacks.",
        log_tail=LOG,
    )
    add_run(experiment, 6, "ngram", state=RunState.FAILED, reason="The engine died.")
    Experiment.objects.filter(pk=experiment.pk).update(
        reason="3 of 21 trials could not be measured. Run 7 (ngram): The engine died."
    )
    return experiment
