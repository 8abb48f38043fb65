"""``manage.py demo``: one real experiment from upload to share page, by the parts the site uses."""

from __future__ import annotations

import json
import secrets
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files import File
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from runner.arms import is_path
from runner.engines.install import detect_kind
from runner.models import demo as demo_model
from runner.plan import (
    Arm,
    Decision,
    Design,
    ExperimentPlan,
    LoadLevel,
    Price,
    estimate_seconds,
    needed_requests,
)
from webapp.accounts import services as accounts
from webapp.accounts.models import User, Workspace
from webapp.core import supervisor
from webapp.core.errors import Refusal
from webapp.core.supervisor import Supervisor, SupervisorError
from webapp.estimates import services as estimates
from webapp.estimates.demo_report import acceptance, numbers, report
from webapp.experiments import selectors as experiment_reads
from webapp.experiments import services as experiments
from webapp.experiments.models import Experiment
from webapp.experiments.progress import Progress
from webapp.experiments.states import ExperimentState
from webapp.fleet.models import TargetModel
from webapp.fleet.selectors import plan_target
from webapp.fleet.services import ModelDetails, register_model
from webapp.samples import services as samples
from webapp.samples.models import Sample

SAMPLE = Path(settings.BASE_DIR) / "webapp" / "samples" / "data" / "demo_sample.jsonl"
EMAIL = "consultant@example.com"
WORKSPACE = "Demo"
EXPERIMENT = "Does n-gram lookup pay?"
MODEL_NAME = "Demo model"
ANSWER_TOKENS = 64
MOST_REQUESTS_ALONE = 12
READ_LIMIT_S = 120
_OVER = (ExperimentState.DONE, ExperimentState.PARTIAL)
_FAILED = (ExperimentState.FAILED, ExperimentState.CANCELLED)
_UNDER_WAY = (ExperimentState.QUEUED, ExperimentState.RUNNING, ExperimentState.ANALYSING)


@dataclass
class Clock:
    """How long each part took, in seconds."""

    took_s: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.took_s[name] = round(now - self._last, 1)
        self.took_s["total"] = round(now - self._began, 1)
        self._last = now


class Command(BaseCommand):
    help = "Measure a real engine with and without speculation on the bundled sample."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--exit", action="store_true", help="end after the verdict")
        parser.add_argument(
            "--target", metavar="NAME", help="a registered model, instead of the demo model"
        )
        parser.add_argument(
            "--minutes", type=float, default=8.0, help="time to measure in (default: 8)"
        )
        parser.add_argument("--port", type=int, help="where pages are served")

    def handle(self, *args: Any, **options: Any) -> None:
        self.clock = Clock()
        supervisor.end_by_sigterm_as_by_ctrl_c()
        try:
            with self._site(options["port"]) as (address, wait):
                self.clock.lap("site")
                self._demo(address, options["target"], 60 * options["minutes"])
                if not options["exit"]:
                    self.say(f"\nThe site stays up at {address}. Ctrl-C ends it.")
                    wait()
        except Refusal as refusal:
            raise CommandError(refusal.sentence) from None
        except SupervisorError as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            self.say("Ended; what was measured is kept.")

    def say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    @contextmanager
    def _site(self, port: int | None) -> Iterator[tuple[str, Callable[[], None]]]:
        """The site with its workers; one that runs from this folder already is used."""
        up = supervisor.running()
        if up:
            self.say(f"The site runs already at {up[1]}")
            yield up[1], lambda: None
            return
        self.say("Starting the services, the site and its workers")
        with Supervisor(port=port, say=self.say) as site:
            yield site.address, site.wait

    def _demo(self, address: str, target_name: str | None, seconds: float) -> None:
        user, password = _person()
        workspace = _workspace(user)
        self.say(f"Sign in at {address}/sign-in as {EMAIL} with the password {password}")
        target = _target(target_name)
        self.say(f"Model: {target.name}")
        if target.notice:
            self.say(target.notice)
        experiment = self._interrupted(workspace, user, target)
        if experiment is None:
            sample = self._upload(workspace, user)
            plan = sized_plan(target, sample.different_prompts, seconds)
            experiment = experiments.draft(workspace, user, sample, target, EXPERIMENT, plan)
            self._announce(experiment, plan)
            experiments.queue(experiment, user)
        self._follow(experiment)
        self.clock.lap("measuring")
        self._conclude(experiment, user, address)

    def _interrupted(
        self, workspace: Workspace, user: User, target: TargetModel
    ) -> Experiment | None:
        """An earlier demo of this model that was cut short: the workers went on with it already."""
        found = None
        earlier = workspace.experiments.filter(name=EXPERIMENT, state__in=_UNDER_WAY)
        for left in earlier.order_by("-pk"):
            if found is None and left.target_id == target.pk:
                found = left
                self.say("Going on with the experiment of a demo that was cut short")
            else:
                with suppress(Refusal):
                    experiments.cancel(left, user)
        return found

    def _upload(self, workspace: Workspace, user: User) -> Sample:
        with SAMPLE.open("rb") as file:
            sample = samples.upload(workspace, user, "Demo sample", File(file, SAMPLE.name))
        deadline = time.monotonic() + READ_LIMIT_S
        while sample.status == Sample.Status.READING:
            if time.monotonic() > deadline:
                raise CommandError(
                    f"Nobody read the sample in {READ_LIMIT_S} s: see var/log/worker.log."
                )
            time.sleep(0.3)
            sample.refresh_from_db()
        if sample.status != Sample.Status.READY:
            raise CommandError(f"The sample was not accepted: {sample.reason}")
        self.say(
            f"Sample: {sample.replayable} requests of {len(sample.categories)} kinds, read by the "
            "web worker"
        )
        self.clock.lap("sample")
        return sample

    def _announce(self, experiment: Experiment, plan: ExperimentPlan) -> None:
        levels = ", ".join(f"{x.requests} with {x.concurrency} in flight" for x in plan.levels)
        runs = plan.design.runs_per_arm * len(plan.arms)
        self.say(
            f"Experiment: {runs} engine starts ({', '.join(arm.name for arm in plan.arms)} and "
            f"back), each with {levels}; about {_minutes(experiment.estimated_s)}"
        )
        self.say(
            f"Assumed, for you to replace: {plan.price.usd_per_hour} USD an engine-hour, "
            f"{plan.decision.requests_per_month:,.0f} requests a month. The model is small and "
            "repeats itself, which flatters drafting."
        )

    def _follow(self, experiment: Experiment) -> None:
        """One line whenever something changed; returns when it is over."""
        last = ""
        while True:
            experiment.refresh_from_db()
            progress = experiment_reads.progress(experiment)
            line = _line(progress)
            if line != last:
                self.say(f"  {line}")
                last = line
            if experiment.state in _OVER:
                return
            if experiment.state in _FAILED:
                raise CommandError(experiment.reason or "The experiment was cancelled.")
            time.sleep(1.0)

    def _conclude(self, experiment: Experiment, user: User, address: str) -> None:
        found = experiment.comparisons.first()
        if found is None:
            raise CommandError(experiment.reason or "Nothing could be compared.")
        title = f"{experiment.target.name}: {found.arm} against no speculation"
        estimate = estimates.from_experiment(experiment, found.document, found.verdict, user, title)
        _, token = estimates.share(estimate, user)
        self.clock.lap("verdict")
        result = {
            "verdict": {key: found.verdict[key] for key in ("code", "sentence")},
            "numbers": numbers(found.verdict),
            "acceptance": acceptance(found.document, found.verdict),
            "addresses": {
                "site": f"{address}/",
                "experiment": f"{address}/experiments/{experiment.public_id}/",
                "share": f"{address}/s/{token}/",
            },
            "state": experiment.state,
            "reason": experiment.reason,
            "took_s": self.clock.took_s,
        }
        path = Path(settings.VAR_DIR) / "demo.json"
        _write_private(path, result)
        for line in report(result):
            self.say(line)
        self.say(f"All of it: {path}")


def sized_plan(target: TargetModel, available: int, seconds: float) -> ExperimentPlan:
    """Baseline and n-gram lookup at 1 and 4 in flight, as many requests as fit the time.

    At 4 in flight three times as many, as they take about a third of the time each.
    """
    plan = ExperimentPlan(
        target=plan_target(target),
        arms=(
            Arm("baseline"),
            Arm(
                "ngram",
                "ngram",
                {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
            ),
        ),
        levels=(LoadLevel(1, 4), LoadLevel(4, 12)),
        price=Price(
            Decimal("0.10"),
            "assumed for the demo: replace it by what your machine costs",
            timezone.localdate().isoformat(),
        ),
        design=Design(
            runs_per_arm=2,
            warmup_requests=1,
            output_check_requests=4,
            output_check_tokens=16,
            max_output_tokens=ANSWER_TOKENS,
        ),
        # No load of one's own: every measured load counts for the verdict.
        decision=Decision(requests_per_month=100_000),
    )
    for requests in range(5, MOST_REQUESTS_ALONE + 1):
        larger = replace(plan, levels=(LoadLevel(1, requests), LoadLevel(4, 3 * requests)))
        if needed_requests(larger) > available or estimate_seconds(larger) > seconds:
            break
        plan = larger
    return plan


def _line(progress: Progress) -> str:
    percent = "" if progress.percent is None else f"{progress.percent:.0f} %"
    left = (
        "" if progress.seconds_left is None else f", about {_minutes(progress.seconds_left)} left"
    )
    counts = f"{progress.done} of {progress.total} requests ({percent})"
    runs = f"{progress.runs_ended} of {progress.runs_total} runs done"
    return f"{progress.phase} | {runs}, {counts}{left}"


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    # Tens of seconds, so that the last minute is not a line a second.
    return f"{round(seconds, -1):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _person() -> tuple[User, str]:
    """The demo's consultant, with a random password that later demos print again."""
    path = Path(settings.VAR_DIR) / "demo-signin.json"
    user = User.objects.filter(email__iexact=EMAIL).first()
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    password = kept.get("password")
    if user and password and user.check_password(password):
        return user, str(password)
    password = secrets.token_urlsafe(12)
    _write_private(path, {"email": EMAIL, "password": password})
    if user is None:
        return accounts.create_user(EMAIL, password, "Consultant"), password
    accounts.set_password(user, password)
    return user, password


def _workspace(user: User) -> Workspace:
    found = user.workspaces.filter(name=WORKSPACE).first()
    return found or accounts.create_workspace(WORKSPACE, user)


def _target(name: str | None) -> TargetModel:
    if name:
        found = TargetModel.objects.filter(name=name, enabled=True).first()
        if found is None:
            known = ", ".join(TargetModel.objects.values_list("name", flat=True)) or "none yet"
            raise CommandError(f"No model {name!r} is registered; registered are: {known}.")
        return found
    location = demo_model.model_location()
    own = location == str(demo_model.demo_folder())
    if own and not demo_model.is_ready():
        raise CommandError("The demo model is not there; run: python -m runner models demo")
    if is_path(location) and not Path(location).expanduser().is_dir():
        raise CommandError(f"MODEL names {location}, which is no folder.")
    # float32: CPUs without bfloat16 units lose with bfloat16 what speculation gains. Eager: on two
    # cores compiling adds about a minute to each start and gained nothing beyond the noise.
    on_cpu = detect_kind() == "cpu"
    shown = MODEL_NAME if own else Path(location).name
    notice = demo_model.NOTICE if own else ""
    details = ModelDetails(
        engine="vllm",
        location=location,
        dtype="float32" if on_cpu else "auto",
        max_model_len=2048,
        enforce_eager=on_cpu,
        notice=notice,
    )
    return register_model(shown, details)


def _write_private(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
