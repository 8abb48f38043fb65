"""Signing in and out, and the list of workspaces."""

from __future__ import annotations

from django.test import Client, RequestFactory
from django.views.defaults import server_error

from tests.webapp.people import PASSWORD, People
from webapp.core import throttle


def test_signing_in_by_e_mail_leads_to_where_one_wanted(client: Client, people: People) -> None:
    wanted = f"/w/{people.workspace.public_id}/samples/new"
    page = client.get(wanted, follow=True)
    assert "Sign in" in page.content.decode()
    answer = client.post(
        "/sign-in",
        {"username": "Consultant@Example.com", "password": PASSWORD, "next": wanted},
    )
    assert (answer.status_code, answer.headers["Location"]) == (302, wanted)


def test_a_wrong_password_says_no_more_than_it_must(client: Client, people: People) -> None:
    pages = [
        client.post("/sign-in", {"username": name, "password": "wrong"}).content.decode()
        for name in ("consultant@example.com", "nobody@example.com")
    ]
    assert all("The e-mail address or the password is wrong." in page for page in pages)


def test_a_foreign_next_address_is_ignored(client: Client, people: People) -> None:
    answer = client.post(
        "/sign-in",
        {"username": "consultant@example.com", "password": PASSWORD, "next": "//evil.example/"},
    )
    assert answer.headers["Location"] == "/"


def test_too_many_tries_get_a_page_that_says_so(client: Client, people: People) -> None:
    while throttle.allow(throttle.LOGIN_PERSON, "consultant@example.com"):
        pass
    answer = client.post("/sign-in", {"username": "consultant@example.com", "password": PASSWORD})
    assert answer.status_code == 429
    assert "Too many tries" in answer.content.decode()


def test_signing_out_is_a_post(client: Client, people: People) -> None:
    client.force_login(people.consultant)
    assert client.get("/sign-out").status_code == 405
    answer = client.post("/sign-out")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/sign-in")
    assert client.get("/").status_code == 302


def test_the_list_shows_ones_own_workspaces_with_the_role(client: Client, people: People) -> None:
    client.force_login(people.client)
    page = client.get("/").content.decode()
    assert "Workspace one" in page
    assert "You are here as client." in page
    assert "Workspace two" not in page


def test_whoever_is_in_no_workspace_is_told_what_happens_next(
    client: Client, people: People
) -> None:
    people.other_workspace.members.clear()
    client.force_login(people.stranger)
    assert "You are in no workspace yet." in client.get("/").content.decode()


def test_a_fault_of_ours_has_a_page_that_needs_nothing(rf: RequestFactory) -> None:
    answer = server_error(rf.get("/"))
    assert answer.status_code == 500
    assert "Something broke on our side" in answer.content.decode()


def test_an_old_form_gets_a_page_of_its_own(people: People) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(people.consultant)
    answer = client.post("/sign-out")
    assert answer.status_code == 403
    assert "This form had grown old" in answer.content.decode()
