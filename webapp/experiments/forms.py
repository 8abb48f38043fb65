"""The form of a new experiment: what a person types, and the plan that it means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any, cast

from django import forms
from django.forms import BoundField
from django.forms.utils import ErrorList

from runner.arms import METHODS, Field, MethodSpec
from runner.plan import (
    Arm,
    Decision,
    Design,
    ExperimentPlan,
    LoadLevel,
    Method,
    PlanError,
    Price,
    Slo,
    suggest,
    validate,
)
from webapp.accounts.models import Workspace
from webapp.fleet.models import TargetModel
from webapp.fleet.selectors import models_offered, plan_target
from webapp.samples.models import Sample

BASELINE = "baseline"
DRAFT_HELP = "A smaller model with the same vocabulary as the target."
LEVELS = 5
"""Rows for load levels on the page."""


@dataclass(frozen=True, slots=True)
class ArmCard:
    """One method as the page shows it."""

    spec: MethodSpec
    checkbox: BoundField
    parameters: list[BoundField]

    @property
    def label(self) -> str:
        return self.spec.label

    @property
    def advice(self) -> str:
        return self.spec.advice

    @property
    def changes_output(self) -> bool:
        return self.spec.changes_output


@dataclass(frozen=True, slots=True)
class LevelRow:
    concurrency: BoundField
    requests: BoundField


class ExperimentForm(forms.Form):
    """``plan()`` gives the ExperimentPlan of a valid form."""

    name = forms.CharField(label="Name", max_length=200, help_text="The question, in a few words.")
    sample = forms.ModelChoiceField(
        label="Sample", queryset=Sample.objects.none(), to_field_name="public_id", empty_label=None
    )
    target = forms.ModelChoiceField(
        label="Target model",
        queryset=TargetModel.objects.none(),
        to_field_name="public_id",
        empty_label=None,
        widget=forms.RadioSelect,
    )
    runs_per_arm = forms.IntegerField(
        label="Runs per arm",
        min_value=2,
        max_value=20,
        initial=Design().runs_per_arm,
        help_text="Engine starts of each arm. More runs make intervals narrower.",
    )
    max_output_tokens = forms.IntegerField(
        label="Longest answer (tokens)",
        required=False,
        min_value=1,
        max_value=100_000,
        help_text="A cap for all requests; their own limits stand when it is empty.",
    )
    ttft_p95_ms = forms.FloatField(label="First word within (ms)", required=False, min_value=0.001)
    tpot_p95_ms = forms.FloatField(label="Each token within (ms)", required=False, min_value=0.001)
    e2e_p95_ms = forms.FloatField(label="Whole answer within (ms)", required=False, min_value=0.001)
    usd_per_hour = forms.DecimalField(
        label="USD per engine-hour", min_value=Decimal(0), max_digits=12, decimal_places=6
    )
    price_as_of = forms.DateField(
        label="As of", widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    )
    price_source = forms.CharField(
        label="Where the price comes from",
        max_length=200,
        help_text="A price list or a contract, so that others can check it.",
    )
    own_concurrency = forms.IntegerField(
        label="Requests in flight in your busy hour",
        required=False,
        min_value=1,
        max_value=100_000,
        help_text="Requests per second times seconds per answer.",
    )
    min_gain_percent = forms.FloatField(
        label="Smallest gain that matters (%)",
        min_value=0,
        max_value=99,
        initial=Decision().min_gain_percent,
        help_text="Less than this is not worth a change.",
    )
    requests_per_month = forms.FloatField(
        label="Requests per month",
        required=False,
        min_value=1,
        help_text="Without it the monthly bill is unknown.",
    )
    peak_to_mean = forms.FloatField(
        label="Busy hour against the mean hour",
        min_value=1,
        max_value=1000,
        initial=Decision().peak_to_mean,
    )

    def __init__(self, workspace: Workspace, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ready = Sample.objects.filter(
            workspace=workspace, status=Sample.Status.READY, replayable__gt=0
        )
        self.samples = list(ready)
        self.targets = list(models_offered())
        self._model_choice("sample").queryset = ready
        self._model_choice("target").queryset = models_offered()
        self.fields["sample"].label_from_instance = sample_label  # type: ignore[attr-defined]
        self.initial.setdefault("price_as_of", date.today())  # noqa: DTZ011 - a person's day
        if self.targets:
            self.initial.setdefault("target", self.targets[0].public_id)
        self.drafts = [
            (f"{target.public_id}:{n}", f"{draft['name']} (for {target.name})")
            for target in self.targets
            for n, draft in enumerate(target.draft_locations)
        ]
        self.methods = {
            name: spec
            for name, spec in METHODS.items()
            if name != "none" and (self.drafts or not any(map(is_draft, spec.fields)))
        }
        self._add_arms()
        self._add_levels()

    def _model_choice(self, name: str) -> forms.ModelChoiceField[Any]:
        field = self.fields[name]
        assert isinstance(field, forms.ModelChoiceField)
        return field

    # --- what the page needs ------------------------------------------------------------------
    @property
    def has_samples(self) -> bool:
        return bool(self.samples)

    @property
    def has_targets(self) -> bool:
        return bool(self.targets)

    @property
    def arm_cards(self) -> list[ArmCard]:
        return [
            ArmCard(
                spec,
                self[f"arm-{method}"],
                [self[f"{method}-{field.name}"] for field in spec.fields],
            )
            for method, spec in self.methods.items()
        ]

    @property
    def level_rows(self) -> list[LevelRow]:
        return [
            LevelRow(self[f"level-{n}-concurrency"], self[f"level-{n}-requests"])
            for n in range(LEVELS)
        ]

    @property
    def arms_errors(self) -> ErrorList:
        return self.errors.get("arms", ErrorList())

    @property
    def levels_errors(self) -> ErrorList:
        return self.errors.get("levels", ErrorList())

    # --- fields that depend on the engine's methods and on the sample -------------------------
    def _add_arms(self) -> None:
        for position, (method, spec) in enumerate(self.methods.items()):
            self.fields[f"arm-{method}"] = forms.BooleanField(
                label=spec.label, required=False, initial=position == 0
            )
            for field in spec.fields:
                self.fields[f"{method}-{field.name}"] = parameter_field(field, self.drafts)

    def _add_levels(self) -> None:
        levels = self._suggested()
        for n in range(LEVELS):
            level = levels[n] if n < len(levels) else None
            for part, shown in (("concurrency", "requests in flight"), ("requests", "requests")):
                self.fields[f"level-{n}-{part}"] = forms.IntegerField(
                    label=f"Level {n + 1}: {shown}",
                    required=False,
                    min_value=1,
                    max_value=100_000,
                    initial=None if level is None else getattr(level, part),
                    widget=forms.NumberInput(attrs={"aria-label": f"Level {n + 1}: {shown}"}),
                )

    def _suggested(self) -> tuple[LoadLevel, ...]:
        wanted = str(self.initial.get("sample", ""))
        chosen = [s for s in self.samples if str(s.public_id) == wanted] or self.samples[:1]
        if not chosen:
            return ()
        try:
            return suggest(chosen[0].different_prompts)[0]
        except PlanError:
            return ()

    # --- what was typed -----------------------------------------------------------------------
    def clean(self) -> dict[str, Any]:
        super().clean()
        data = self.cleaned_data
        levels = list(self._levels())
        if not levels and not any(name.startswith("level-") for name in self.errors):
            self._note("levels", "Give at least one load level.")
        if not any(data.get(f"arm-{method}") for method in self.methods):
            self._note("arms", "Choose at least one candidate.")
        self._check_draft()
        if not self.errors:
            for problem in validate(self.plan()):
                self.add_error(None, problem)
        return data

    def _check_draft(self) -> None:
        """A draft model shares its target's vocabulary, so it goes with that target alone."""
        data = self.cleaned_data
        target: TargetModel | None = data.get("target")
        for method, spec in self.methods.items():
            for field in filter(is_draft, spec.fields):
                name = f"{method}-{field.name}"
                if not data.get(f"arm-{method}") or target is None or name in self.errors:
                    continue
                if self._draft_location(str(data.get(name) or "")) is None:
                    self.add_error(name, f"Choose a draft model that goes with {target.name}.")

    def _note(self, place: str, sentence: str) -> None:
        """An error of a group of fields, shown where the group is."""
        self.errors[place] = self.error_class([sentence], renderer=self.renderer)

    def _levels(self) -> Iterator[LoadLevel]:
        for n in range(LEVELS):
            concurrency = self.cleaned_data.get(f"level-{n}-concurrency")
            requests = self.cleaned_data.get(f"level-{n}-requests")
            if concurrency and requests:
                yield LoadLevel(concurrency, requests)
            elif concurrency and f"level-{n}-requests" not in self.errors:
                self.add_error(f"level-{n}-requests", "How many requests at this load?")
            elif requests and f"level-{n}-concurrency" not in self.errors:
                self.add_error(f"level-{n}-concurrency", "How many in flight?")

    def _arms(self) -> Iterator[Arm]:
        yield Arm(BASELINE)
        for method, spec in self.methods.items():
            if self.cleaned_data.get(f"arm-{method}"):
                yield Arm(method, cast(Method, method), dict(self._parameters(method, spec)))

    def _parameters(self, method: str, spec: MethodSpec) -> Iterator[tuple[str, Any]]:
        for field in spec.fields:
            value = self.cleaned_data.get(f"{method}-{field.name}")
            if is_draft(field):
                value = self._draft_location(str(value or ""))
            if value not in (None, ""):
                yield field.name, value

    def _draft_location(self, choice: str) -> str | None:
        """The location behind a chosen draft; None when it belongs to another target."""
        target: TargetModel = self.cleaned_data["target"]
        owner, _, position = choice.partition(":")
        if owner != str(target.public_id):
            return None
        return str(target.draft_locations[int(position)]["location"])

    def plan(self) -> ExperimentPlan:
        """The plan that a valid form means."""
        data = self.cleaned_data
        levels = tuple(self._levels())
        return ExperimentPlan(
            target=plan_target(data["target"]),
            arms=tuple(self._arms()),
            levels=levels,
            price=Price(
                data["usd_per_hour"], data["price_source"], data["price_as_of"].isoformat()
            ),
            slo=Slo(data["ttft_p95_ms"], data["tpot_p95_ms"], data["e2e_p95_ms"]),
            design=self._design(),
            decision=Decision(
                min_gain_percent=data["min_gain_percent"],
                own_concurrency=data["own_concurrency"],
                requests_per_month=data["requests_per_month"],
                peak_to_mean=data["peak_to_mean"],
            ),
        )

    def _design(self) -> Design:
        """The typed design; the output check shrinks where the sample is small."""
        data = self.cleaned_data
        sample: Sample = data["sample"]
        try:
            design = suggest(sample.different_prompts)[1]
        except PlanError:
            design = Design()
        return replace(
            design,
            runs_per_arm=data["runs_per_arm"],
            max_output_tokens=data["max_output_tokens"],
        )


def sample_label(sample: Sample) -> str:
    return f"{sample.name} ({sample.replayable} replayable requests)"


def is_draft(field: Field) -> bool:
    """Whether the parameter names another model: the page offers those of the target only."""
    return field.name == "model"


def parameter_field(field: Field, drafts: list[tuple[str, str]]) -> forms.Field:
    """The form field of one parameter of a method."""
    about: dict[str, Any] = {"label": field.label, "required": False, "initial": field.default}
    if is_draft(field):
        return forms.ChoiceField(choices=drafts, help_text=DRAFT_HELP, **about)
    about["help_text"] = field.help
    if field.type == "str":
        return forms.CharField(max_length=200, **about)
    kind = forms.IntegerField if field.type == "int" else forms.FloatField
    bounds: dict[str, Any] = {"min_value": field.minimum, "max_value": field.maximum}
    return kind(**bounds, **about)
