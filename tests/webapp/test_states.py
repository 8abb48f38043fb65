"""Every move between states: those in the table happen, all others change nothing."""

from __future__ import annotations

from itertools import product

import pytest
from django.utils import timezone

from tests.webapp.lab import HOST, make_experiment, run_of
from tests.webapp.people import People
from webapp.experiments.lease import Lease, LeaseLost, move, move_experiment
from webapp.experiments.models import Experiment, Run
from webapp.experiments.states import (
    EXPERIMENT_MOVES,
    RUN_ACTIVE,
    RUN_ENDED,
    RUN_MOVES,
    TRIAL_MOVES,
    ExperimentState,
    RunState,
    TrialState,
)
from webapp.fleet.models import Slot


def test_the_tables_know_every_state() -> None:
    assert set(EXPERIMENT_MOVES) == set(ExperimentState)
    assert set(RUN_MOVES) == set(RunState)
    assert set(TRIAL_MOVES) == set(TrialState)
    assert {*RUN_ACTIVE, *RUN_ENDED, RunState.PENDING} == set(RunState)


def test_ended_runs_never_move_and_each_state_can_be_reached() -> None:
    assert all(RUN_MOVES[state] == () for state in RUN_ENDED)
    for table, first in (
        (EXPERIMENT_MOVES, ExperimentState.DRAFT),
        (RUN_MOVES, RunState.PENDING),
        (TRIAL_MOVES, TrialState.PENDING),
    ):
        reached, edge = {str(first)}, [str(first)]
        while edge:
            for state in table[edge.pop()]:
                if state not in reached:
                    reached.add(state)
                    edge.append(state)
        assert reached == {str(state) for state in table}


@pytest.mark.django_db
def test_an_experiment_moves_by_its_table_only(people: People) -> None:
    experiment = make_experiment(people, queued=False)
    for start, end in product(ExperimentState, ExperimentState):
        Experiment.objects.filter(pk=experiment.pk).update(state=start)
        allowed = end in EXPERIMENT_MOVES[start]
        assert move_experiment(experiment.pk, end) is allowed, (start, end)
        experiment.refresh_from_db()
        assert experiment.state == (end if allowed else start)


@pytest.mark.django_db
def test_a_run_moves_by_its_table_only(people: People) -> None:
    run = run_of(make_experiment(people), 0)
    slot = Slot.objects.create(host=HOST, device="cpu")
    lease = Lease(run.pk, run.experiment_id, 3, slot.pk, "cpu")
    for start, end in product(RUN_ACTIVE, RunState):
        Run.objects.filter(pk=run.pk).update(state=start, fence=3, lease_until=timezone.now())
        if end in RUN_MOVES[start] or end == start:
            move(lease, end)
            run.refresh_from_db()
            assert run.state == end
        else:
            with pytest.raises(LeaseLost):
                move(lease, end)
            run.refresh_from_db()
            assert run.state == start
