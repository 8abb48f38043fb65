"""Reads of comparisons. Documents only: ``evidence`` is what reads measurements."""

from __future__ import annotations

from webapp.comparisons.models import Comparison
from webapp.experiments.models import Experiment


def for_experiment(experiment: Experiment) -> list[Comparison]:
    """One comparison for each candidate arm that was measured, in the plan's order."""
    order = [arm["name"] for arm in experiment.plan["arms"]]
    found = Comparison.objects.filter(experiment=experiment, arm__in=order)
    return sorted(found, key=lambda comparison: order.index(comparison.arm))
