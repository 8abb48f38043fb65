"""Set up, review, start, watch, cancel, resume and read the result of an experiment."""

from __future__ import annotations

import html
import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from calculator.answers import NOT_SCORED
from calculator.outputs import WHY
from tests.webapp import documents
from tests.webapp.lab import CANARY, FASTER, make_experiment, make_sample, make_target, measure
from tests.webapp.people import People
from tests.webapp.rows import add_run, ended_experiment, frozen_estimate, ready_sample
from webapp.comparisons.models import Comparison
from webapp.estimates.models import Estimate
from webapp.experiments.models import Experiment, Run
from webapp.experiments.states import ExperimentState, RunState
from webapp.fleet.models import TargetModel
from webapp.samples.models import Sample


def address(experiment: Experiment, name: str = "experiment") -> str:
    return reverse(name, args=[experiment.public_id])


def new_address(people: People) -> str:
    return reverse("experiment-new", args=[people.workspace.public_id])


def typed(sample: Sample, target: TargetModel, **changes: Any) -> dict[str, Any]:
    """A filled-in form."""
    return {
        "name": "Does it pay?",
        "sample": sample.public_id,
        "target": target.public_id,
        "arm-ngram": "on",
        "ngram-num_speculative_tokens": 4,
        "ngram-prompt_lookup_min": 2,
        "ngram-prompt_lookup_max": 4,
        "level-0-concurrency": 1,
        "level-0-requests": 6,
        "level-1-concurrency": 2,
        "level-1-requests": 8,
        "runs_per_arm": 2,
        "usd_per_hour": "0.09",
        "price_as_of": "2026-11-01",
        "price_source": "Price list",
        "own_concurrency": 2,
        "min_gain_percent": 5,
        "peak_to_mean": 2,
        **changes,
    }


def shape(value: Any, path: str = "") -> set[str]:
    """Every key of a document with its place; of lists and of named groups the first stands."""
    if path in (".fleet.baseline", ".fleet.candidate"):  # null without a volume
        return set()
    if isinstance(value, dict):
        named = path.endswith((".categories", ".failures.baseline", ".failures.candidate"))
        items = [("*", next(iter(value.values()), None))] if named else list(value.items())
        return {f"{path}.{key}" for key, _ in items if not named}.union(
            *(shape(inner, f"{path}.{key}") for key, inner in items)
        )
    if isinstance(value, list):
        if path.endswith((".excluded", ".reasons", ".notes", ".failing", ".curve", ".examples")):
            return set()
        return shape(value[0], f"{path}[]") if value else set()
    return set()


# --- setting up -----------------------------------------------------------------------------------
def test_a_filled_form_leads_to_a_review_and_starts_nothing(
    as_consultant: Client, people: People
) -> None:
    sample, target = ready_sample(people), make_target(FASTER)
    answer = as_consultant.post(new_address(people), typed(sample, target), follow=True)
    experiment = Experiment.objects.get()
    assert answer.redirect_chain == [(address(experiment), 302)]
    assert experiment.state == ExperimentState.DRAFT
    assert not experiment.runs.exists()
    page = answer.content.decode()
    for text in ("Start the experiment", "Expected duration", "Expected cost", "$0.09 an hour",
                 "Price list", "6 requests at 1 in flight",
                 "num speculative tokens 4"):  # fmt: skip
        assert text in page
    assert [run.arm for run in answer.context["runs"]] == ["baseline", "ngram", "ngram", "baseline"]
    assert answer.context["request_count"] == 4 * 14


def test_the_form_suggests_levels_that_fit_the_sample(
    as_consultant: Client, people: People
) -> None:
    make_target(FASTER)
    sample = ready_sample(people, replayable=32, different_prompts=30)
    page = as_consultant.get(f"{new_address(people)}?sample={sample.public_id}")
    rows = page.context["form"].level_rows
    shown = [(row.concurrency.value(), row.requests.value()) for row in rows]
    assert shown[0] == (1, shown[0][1])
    assert sum(requests or 0 for _, requests in shown) <= 30


@pytest.mark.parametrize(
    ("changes", "place", "sentence"),
    [
        ({"name": ""}, "name", "This field is required."),
        ({"arm-ngram": ""}, "arms", "Choose at least one candidate."),
        ({"level-0-requests": ""}, "level-0-requests", "How many requests at this load?"),
        ({"level-0-concurrency": ""}, "level-0-concurrency", "How many in flight?"),
        ({"runs_per_arm": 1}, "runs_per_arm", "greater than or equal to 2"),
        ({"usd_per_hour": -1}, "usd_per_hour", "greater than or equal to 0"),
        ({"ngram-num_speculative_tokens": 500}, "ngram-num_speculative_tokens", "less than"),
        ({"ngram-prompt_lookup_min": 9}, "__all__", "must not be above"),
        ({"level-0-requests": 500}, "__all__", "add 456 more requests"),
        ({"level-1-concurrency": 1}, "__all__", "a concurrency of its own"),
        ({"ttft_p95_ms": "nan"}, "ttft_p95_ms", "Enter a number."),
    ],
)
def test_an_error_stands_beside_its_field(
    as_consultant: Client, people: People, changes: dict[str, Any], place: str, sentence: str
) -> None:
    data = typed(ready_sample(people), make_target(FASTER), **changes)
    answer = as_consultant.post(new_address(people), data)
    assert answer.status_code == 200
    assert sentence in " ".join(answer.context["form"].errors[place])
    assert sentence in answer.content.decode()
    assert not Experiment.objects.exists()


def test_no_level_at_all_is_said_once(as_consultant: Client, people: People) -> None:
    empty = {f"level-{n}-{part}": "" for n in (0, 1) for part in ("concurrency", "requests")}
    data = typed(ready_sample(people), make_target(FASTER), **empty)
    answer = as_consultant.post(new_address(people), data)
    assert answer.content.decode().count("Give at least one load level.") == 1


def test_a_draft_model_goes_with_its_target_only(as_consultant: Client, people: People) -> None:
    sample, target = ready_sample(people), make_target(FASTER)
    page = as_consultant.get(new_address(people)).content.decode()
    assert "arm-draft_model" not in page  # nobody registered one
    target.draft_locations = [{"name": "Small", "location": "/models/small"}]
    target.save(update_fields=["draft_locations"])
    other = make_target(FASTER, "Other")
    draft = {"arm-draft_model": "on", "draft_model-num_speculative_tokens": 3,
             "draft_model-model": f"{target.public_id}:0"}  # fmt: skip
    wrong = as_consultant.post(new_address(people), typed(sample, other, **draft))
    assert "Choose a draft model that goes with Other." in wrong.content.decode()
    as_consultant.post(new_address(people), typed(sample, target, **draft))
    arms = {arm["name"]: arm["parameters"] for arm in Experiment.objects.get().plan["arms"]}
    assert arms["draft_model"]["model"] == "/models/small"


def test_a_sample_of_another_workspace_can_not_be_chosen(
    as_consultant: Client, people: People
) -> None:
    foreign = ready_sample(people)
    foreign.workspace = people.other_workspace
    foreign.save(update_fields=["workspace"])
    ready_sample(people)
    answer = as_consultant.post(new_address(people), typed(foreign, make_target(FASTER)))
    assert answer.status_code == 200
    assert "sample" in answer.context["form"].errors


def test_empty_shelves_say_what_to_do_next(as_consultant: Client, people: People) -> None:
    assert "Upload a sample" in as_consultant.get(new_address(people)).content.decode()
    ready_sample(people)
    assert (
        "No model is offered here yet." in as_consultant.get(new_address(people)).content.decode()
    )


# --- from start to end ----------------------------------------------------------------------------
@pytest.mark.django_db(transaction=True)
def test_from_start_to_result_and_estimate(as_consultant: Client, people: People) -> None:
    experiment = make_experiment(people, FASTER, queued=False)
    running = as_consultant.post(address(experiment, "experiment-start"), follow=True)
    assert "requests measured" in running.content.decode()
    fragment = as_consultant.get(address(experiment, "experiment-progress"))
    assert 'hx-trigger="every 2s"' in fragment.content.decode()
    assert "HX-Refresh" not in fragment.headers

    measure(experiment)
    ended = as_consultant.get(address(experiment, "experiment-progress"))
    assert ended.headers["HX-Refresh"] == "true"
    result = as_consultant.get(address(experiment))
    page = result.content.decode()
    verdict = Comparison.objects.get().verdict
    assert verdict["sentence"] in page.replace("&#x27;", "'")
    assert CANARY not in page

    made = as_consultant.post(
        address(experiment, "experiment-estimate"), {"arm": "ngram", "title": "For the client"},
        follow=True,
    )  # fmt: skip
    estimate = Estimate.objects.get()
    # The documents that other tests show are shaped as real ones.
    row = Comparison.objects.get()
    assert shape(documents.comparison()) == shape(row.document)
    assert shape(documents.verdict("switch_on")) == shape(row.verdict)
    assert shape(documents.estimate()) == shape(estimate.document)
    assert made.redirect_chain == [(reverse("estimate", args=[estimate.public_id]), 302)]
    assert "For the client" in made.content.decode()
    assert CANARY not in made.content.decode()


def test_cancelling_asks_first_and_resuming_goes_on(as_consultant: Client, people: People) -> None:
    experiment = make_experiment(people)
    asked = as_consultant.get(address(experiment, "experiment-cancel"))
    assert "What was measured is kept" in asked.content.decode()
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.QUEUED
    page = as_consultant.post(address(experiment, "experiment-cancel"), follow=True)
    text = page.content.decode()
    assert "0 of 8 trials were recorded" in text
    assert "Resume" in text
    as_consultant.post(address(experiment, "experiment-resume"))
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.QUEUED


def test_what_can_not_be_done_is_said(as_consultant: Client, people: People) -> None:
    experiment = ended_experiment(people)
    for name in ("experiment-cancel", "experiment-resume"):
        page = as_consultant.post(address(experiment, name), follow=True).content.decode()
        assert "This experiment has ended" in page


# --- the result -----------------------------------------------------------------------------------
def test_the_result_shows_what_the_documents_say(as_consultant: Client, people: People) -> None:
    experiment = ended_experiment(people)
    page = as_consultant.get(address(experiment)).content.decode()
    for text in ("Switch ngram on while fewer than 8", "Switch it on below 8 in flight",
                 "6.01 s", "3.31 s", "45 % cheaper", "no change shown", "code editing",
                 "9 of 16 greedy answers", "3,889", "1 in 1,220 tokens", "support-7, token 12",
                 "client saturated", "was the bottleneck",
                 "1 timeout", "1,351 of 1,648", "settings.method"):  # fmt: skip
        assert text in page


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"status": "changed", "why": "unlikely_tokens"}, WHY["unlikely_tokens"]),
        ({"status": "not_tested", "why": "unexplained"}, "check more answers"),
        ({"status": "not_tested", "why": "no_answers"}, "Nobody looked whether answers change"),
        (
            {"forced": {"candidate": None, "control": None}, "not_scored": "no_prompt_logprobs"},
            NOT_SCORED["no_prompt_logprobs"],
        ),
    ],
)
def test_the_output_check_says_why(
    as_consultant: Client, people: People, changes: dict[str, Any], sentence: str
) -> None:
    experiment = ended_experiment(people)
    row = Comparison.objects.get(arm="ngram")
    row.document["output_check"].update(changes)
    row.save()
    page = html.unescape(as_consultant.get(address(experiment)).content.decode())
    assert sentence in page


def test_arms_and_levels_are_chosen_by_address(as_consultant: Client, people: People) -> None:
    experiment = ended_experiment(people)
    page = as_consultant.get(address(experiment), {"arm": "suffix", "level": "8"})
    assert page.context["comparison"].arm == "suffix"
    assert page.context["level"]["concurrency"] == 8
    astray = as_consultant.get(address(experiment), {"arm": "none-such", "level": "x"})
    assert astray.context["comparison"].arm == "ngram"
    assert astray.context["level"]["concurrency"] == 1


def test_figures_hold_no_template_and_no_colour(as_consultant: Client, people: People) -> None:
    figures = as_consultant.get(address(ended_experiment(people))).context["figures"]
    assert set(figures) == {"gain", "categories", "e2e", "ttft", "acceptance"}
    text = json.dumps(figures)
    assert "template" not in text.replace("hovertemplate", "")
    assert "color" not in text
    gain = figures["gain"]["data"][0]
    effect = documents.effect("e2e_ms")
    assert gain["y"][0] == pytest.approx(1 / effect["ratio"]["estimate"])
    assert gain["y"][0] + gain["error_y"]["array"][0] == pytest.approx(1 / effect["ratio"]["low"])


def test_unknown_numbers_are_shown_as_unknown(as_consultant: Client, people: People) -> None:
    experiment = ended_experiment(people)
    row = Comparison.objects.get(arm="ngram")
    nothing = {"estimate": None, "low": None, "high": None}
    for part in row.document["levels"]:
        for effect in part["effects"].values():
            effect.update(baseline=nothing, candidate=nothing, ratio=nothing, status="unknown")
        part["acceptance"] = {
            "status": "not_measured", "acceptance_rate": nothing, "mean_acceptance_length": nothing,
            "drafts": None, "draft_tokens": None, "accepted_tokens": None, "per_position": [],
        }  # fmt: skip
        part["categories"] = {}
    row.verdict.update(documents.verdict("not_proven"), would_settle="Run 4 more runs an arm.")
    row.verdict["headline"] = row.document["levels"][0]["effects"]
    row.save()
    page = as_consultant.get(address(experiment)).content.decode()
    assert "unknown" in page
    assert "Run 4 more runs an arm." in page
    assert "exposed no counters" in page
    assert "None" not in page


def test_a_comparison_without_a_level_still_has_its_page(
    as_consultant: Client, people: People
) -> None:
    experiment = ended_experiment(people)
    row = Comparison.objects.get(arm="ngram")
    row.document.update(levels=[], aa_control=[])
    row.verdict.update(documents.verdict("not_proven"), headline={}, headline_concurrency=None)
    row.save()
    page = as_consultant.get(address(experiment))
    assert page.context["figures"] == {}
    text = page.content.decode()
    assert "no load level was measured in both arms" in text
    assert "Not proven" in text


def test_an_unsupported_arm_shows_the_engines_reason(as_consultant: Client, people: People) -> None:
    experiment = ended_experiment(people)
    Comparison.objects.filter(arm="suffix").delete()
    Run.objects.filter(arm="suffix").update(
        state=RunState.UNSUPPORTED, reason="Suffix decoding is not installed.", log_tail=["E 1"]
    )
    page = as_consultant.get(address(experiment)).content.decode()
    assert "suffix: not supported" in page
    assert "Suffix decoding is not installed." in page


@pytest.mark.parametrize("state", ["partial", "failed", "cancelled"])
def test_an_early_end_says_why_and_what_is_kept(
    as_consultant: Client, people: People, state: str
) -> None:
    experiment = ended_experiment(people, state)
    experiment.reason = "The engine died."
    experiment.save(update_fields=["reason"])
    add_run(experiment, 6, "ngram", state=RunState.FAILED, reason="It died.")
    page = as_consultant.get(address(experiment)).content.decode()
    assert "The engine died." in page
    assert "18 of 21 trials were recorded and are kept." in page
    assert "Resume" in page


def test_a_result_costs_few_queries(
    as_consultant: Client, people: People, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    experiment = ended_experiment(people)
    for index in range(6, 30):
        add_run(experiment, index, "ngram")
    with django_assert_max_num_queries(11) as seen:
        as_consultant.get(address(experiment))
    # Its cost does not grow with the measurements: it reads documents.
    assert not any("experiments_measurement" in query["sql"] for query in seen.captured_queries)


def test_a_workspace_costs_few_queries(
    as_consultant: Client, people: People, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    target = make_target(FASTER)
    for _ in range(5):
        frozen_estimate(people, ended_experiment(people, target=target))
    with django_assert_max_num_queries(9):
        page = as_consultant.get(reverse("workspace", args=[people.workspace.public_id]))
    text = page.content.decode()
    assert text.count("ngram: switch it on below a load") == 5
    assert text.count("Switch it on?") == 5


# --- other people ---------------------------------------------------------------------------------
def test_a_client_reads_everything_and_changes_nothing(client: Client, people: People) -> None:
    client.force_login(people.client)
    draft = make_experiment(people, queued=False)
    ended = ended_experiment(people, "partial", target=draft.target)
    assert "Start the experiment" not in client.get(address(draft)).content.decode()
    page = client.get(address(ended)).content.decode()
    assert "Make the estimate" not in page
    assert "Resume" not in page
    assert client.get(new_address(people)).status_code == 403
    for name in ("start", "cancel", "resume", "estimate"):
        assert client.post(address(ended, f"experiment-{name}")).status_code == 403
    workspace = client.get(reverse("workspace", args=[people.workspace.public_id]))
    assert "New experiment" not in workspace.content.decode()


def test_a_stranger_finds_nothing(client: Client, people: People) -> None:
    experiment = ended_experiment(people)
    client.force_login(people.stranger)
    for name in ("experiment", "experiment-progress", "experiment-cancel"):
        assert client.get(address(experiment, name)).status_code == 404
    for name in ("start", "cancel", "resume", "estimate"):
        assert client.post(address(experiment, f"experiment-{name}")).status_code == 404
    assert client.get(reverse("workspace", args=[people.workspace.public_id])).status_code == 404


def test_an_estimate_of_an_arm_that_was_not_measured_is_not_found(
    as_consultant: Client, people: People
) -> None:
    experiment = ended_experiment(people)
    answer = as_consultant.post(address(experiment, "experiment-estimate"), {"arm": "other"})
    assert answer.status_code == 404


def test_a_refusal_of_the_service_is_shown_on_the_form(
    as_consultant: Client, people: People
) -> None:
    sample, target = make_sample(people, 12), make_target(FASTER)
    data = typed(sample, target)
    answer = as_consultant.post(new_address(people), data)
    assert answer.status_code == 200
    assert "more requests" in answer.content.decode()
    assert not Experiment.objects.exists()
