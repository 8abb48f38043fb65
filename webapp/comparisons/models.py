from __future__ import annotations

from django.db import models

from webapp.experiments.models import Experiment


class Comparison(models.Model):
    """One candidate arm against the baseline, computed once when the experiment is analysed."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="comparisons")
    arm = models.CharField(max_length=60)
    schema_version = models.PositiveIntegerField(default=1)
    computed_at = models.DateTimeField(auto_now=True)
    document = models.JSONField()
    """calculator.comparison.Comparison as ``to_document`` writes it"""
    verdict = models.JSONField()
    """calculator.verdict.Verdict as ``to_document`` writes it"""

    class Meta:
        ordering = ("experiment_id", "id")
        constraints = (
            models.UniqueConstraint(fields=("experiment", "arm"), name="comparison_unique"),
        )
