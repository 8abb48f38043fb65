from __future__ import annotations

import secrets

from django.contrib.postgres.fields import ArrayField
from django.db import models

from webapp.accounts.models import User, Workspace
from webapp.core.models import PublicRow
from webapp.experiments.states import RUN_ACTIVE, ExperimentState, RunState, TrialState
from webapp.fleet.models import Slot, TargetModel
from webapp.samples.models import Sample


def new_digest_key() -> str:
    return secrets.token_hex(16)


class Experiment(PublicRow):
    """One question asked of one sample and one target model."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="experiments")
    sample = models.ForeignKey(Sample, on_delete=models.PROTECT, related_name="experiments")
    target = models.ForeignKey(TargetModel, on_delete=models.PROTECT, related_name="+")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    name = models.CharField(max_length=200)
    state = models.CharField(
        max_length=12, choices=ExperimentState.choices, default=ExperimentState.DRAFT
    )
    reason = models.TextField(blank=True)
    """One sentence for states that need one (partial, failed)."""
    plan = models.JSONField()
    """The ExperimentPlan as ``runner.plan_codec`` writes it; holds no request text."""
    digest_key = models.CharField(max_length=32, default=new_digest_key)
    """Keys the output check's digests, so that equal answers can't be told across experiments."""
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    estimated_s = models.FloatField(null=True, blank=True)
    """Expected duration, shown before it starts."""

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.name


class Run(PublicRow):
    """One server start of one arm: the statistical block."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="runs")
    index = models.PositiveIntegerField()
    """Position in the plan's order; a successor of a lost run has the same index."""
    attempt = models.PositiveIntegerField(default=1)
    losses = models.PositiveIntegerField(default=0)
    """Workers lost on this index since a person last started it; bounds automatic successors."""
    arm = models.CharField(max_length=60)
    block = models.PositiveIntegerField()
    state = models.CharField(max_length=12, choices=RunState.choices, default=RunState.PENDING)
    code = models.CharField(max_length=40, blank=True)
    reason = models.TextField(blank=True)
    log_tail = models.JSONField(default=list, blank=True)
    slot = models.ForeignKey(
        Slot, null=True, blank=True, on_delete=models.SET_NULL, related_name="runs"
    )
    fence = models.PositiveIntegerField(default=0)
    """Raised by every claim; a worker writes only while its own fence still stands."""
    lease_until = models.DateTimeField(null=True, blank=True)
    worker = models.CharField(max_length=120, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    engine_start_s = models.FloatField(null=True, blank=True)
    fingerprint = models.JSONField(default=dict, blank=True)
    warm_up = models.JSONField(null=True, blank=True)
    """runner.warmup.WarmUp as a dict; null: there was none"""
    output = models.JSONField(null=True, blank=True)
    """calculator.answers.OutputRecord as JSON; null: the output check was not made"""

    class Meta:
        ordering = ("index", "attempt")
        constraints = (
            models.UniqueConstraint(
                fields=("experiment", "index", "attempt"), name="run_attempt_unique"
            ),
            # One engine per slot, and one run of an experiment at a time, whoever claims.
            models.UniqueConstraint(
                fields=("slot",), condition=models.Q(state__in=RUN_ACTIVE), name="run_slot_taken"
            ),
            models.UniqueConstraint(
                fields=("experiment",),
                condition=models.Q(state__in=RUN_ACTIVE),
                name="run_one_active",
            ),
        )
        indexes = (models.Index(fields=("state", "lease_until")),)


class Trial(models.Model):
    """One load level replayed inside one run."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="trials")
    index = models.PositiveIntegerField()
    concurrency = models.PositiveIntegerField()
    requests = models.PositiveIntegerField()
    done = models.PositiveIntegerField(default=0)
    """Requests finished so far, for the progress bar only."""
    state = models.CharField(max_length=10, choices=TrialState.choices, default=TrialState.PENDING)
    reasons = models.JSONField(default=list, blank=True)
    """Codes of why it may not be believed."""
    duration_s = models.FloatField(null=True, blank=True)
    counters = models.JSONField(null=True, blank=True)
    """calculator.measurement.SpeculationCounters as a dict; null = not exposed"""
    client = models.JSONField(null=True, blank=True)
    """calculator.measurement.ClientHealth as a dict"""

    class Meta:
        ordering = ("run_id", "index")
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="trial_unique"),)


class Measurement(models.Model):
    """calculator.measurement.Measurement as a row. Written by COPY, never updated."""

    trial = models.ForeignKey(Trial, on_delete=models.CASCADE, related_name="measurements")
    sequence = models.PositiveIntegerField()
    request_id = models.CharField(max_length=200)
    category = models.CharField(max_length=80, null=True)
    outcome = models.CharField(max_length=8)
    scheduled_ns = models.BigIntegerField()
    sent_ns = models.BigIntegerField()
    done_ns = models.BigIntegerField()
    first_byte_ns = models.BigIntegerField(null=True)
    first_token_ns = models.BigIntegerField(null=True)
    last_token_ns = models.BigIntegerField(null=True)
    prompt_tokens = models.IntegerField(null=True)
    cached_tokens = models.IntegerField(null=True)
    output_tokens = models.IntegerField(null=True)
    first_event_tokens = models.IntegerField(null=True)
    chunks = models.IntegerField(default=0)
    finish_reason = models.CharField(max_length=40, null=True)
    error_kind = models.CharField(max_length=60, null=True)
    first_reasoning_ns = models.BigIntegerField(null=True)
    first_answer_ns = models.BigIntegerField(null=True)
    retry_after_s = models.FloatField(null=True)
    open_loop = models.BooleanField(default=False)
    marks = ArrayField(models.CharField(max_length=40), default=list)
    """Codes of calculator.measurement.MARKS"""
    chunk_gaps_us = ArrayField(models.IntegerField(), default=list)
    """Of each event with text: time since the one before it; these three are read for one request
    at a time only."""
    chunk_bytes = ArrayField(models.IntegerField(), default=list)
    chunk_tokens = ArrayField(models.IntegerField(), default=list)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("trial", "sequence"), name="measurement_unique"),
        )
