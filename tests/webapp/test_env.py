"""Each variable: what is accepted, what is refused, and with which words."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from webapp import env

KEY = "a1b2c3d4" * 8

ACCEPTED = [
    (env.SECRET_KEY, KEY, KEY),
    (env.DEBUG, "1", True),
    (env.DEBUG, "No", False),
    (env.BASE_URL, "https://draftproof.example.com/", "https://draftproof.example.com"),
    (env.BASE_URL, "http://127.0.0.1:8123", "http://127.0.0.1:8123"),
    (env.BASE_URL, "http://[::1]:8123", "http://[::1]:8123"),
    (env.ALLOWED_HOSTS, "a.example.com, b.example.com", ("a.example.com", "b.example.com")),
    (env.CSRF_ORIGINS, "https://a.example.com", ("https://a.example.com",)),
    (env.TRUST_PROXY, "on", True),
    (env.VAR_DIR, "/srv/draftproof", Path("/srv/draftproof")),
    (env.DATABASE_URL, "postgresql://u:p@db:5432/name", "postgresql://u:p@db:5432/name"),
    (env.REDIS_URL, "rediss://:p@cache:6380/0", "rediss://:p@cache:6380/0"),
    (env.PROCESS, "web", "web"),
    (env.UPLOAD_MAX_MB, "512", 512),
    (env.LOG_FORMAT, "json", "json"),
    (env.LOG_LEVEL, "DEBUG", "DEBUG"),
    (env.PASSWORD, "a password", "a password"),
    (env.ENGINE_PYTHON, "/opt/engine/bin/python", Path("/opt/engine/bin/python")),
    (env.MODEL, "some/model", "some/model"),
    (env.TORCH_INDEX, "https://index.example.com/cpu", "https://index.example.com/cpu"),
]

REFUSED = [
    (env.SECRET_KEY, "short", "at least 50 random characters"),
    (env.SECRET_KEY, "a" * 60, "at least 50 random characters"),
    (env.DEBUG, "maybe", "write 1 or 0"),
    (env.BASE_URL, "draftproof.example.com", "must look like https://"),
    (env.BASE_URL, "http://draftproof.example.com", "use https"),
    (env.BASE_URL, "https://example.com/draftproof", "the site lives at the root"),
    (env.ALLOWED_HOSTS, "*", "without scheme or *"),
    (env.ALLOWED_HOSTS, "https://a.example.com", "without scheme or *"),
    (env.CSRF_ORIGINS, "a.example.com", "must hold origins"),
    (env.TRUST_PROXY, "2", "write 1 or 0"),
    (env.VAR_DIR, "var", "give an absolute one"),
    (env.DATABASE_URL, "mysql://u:s3cret@db/name", "must look like postgresql://"),
    (env.DATABASE_URL, "postgresql://u:s3cret@db", "must look like postgresql://"),
    (env.REDIS_URL, "http://:s3cret@cache", "must look like redis://"),
    (env.PROCESS, "cron", "web, worker, manage"),
    (env.UPLOAD_MAX_MB, "0", "between 1 and 1024"),
    (env.UPLOAD_MAX_MB, "much", "no whole number"),
    (env.LOG_FORMAT, "xml", "plain, json"),
    (env.LOG_LEVEL, "debug", "DEBUG, INFO"),
    (env.ENGINE_PYTHON, "bin/python", "give an absolute one"),
]


@pytest.mark.parametrize(("variable", "text", "value"), ACCEPTED)
def test_accepts(variable: env.Variable[Any], text: str, value: object) -> None:
    assert variable.get({variable.name: f" {text}\n"}) == value


@pytest.mark.parametrize(("variable", "text", "words"), REFUSED)
def test_refuses_with_one_sentence(variable: env.Variable[Any], text: str, words: str) -> None:
    with pytest.raises(env.EnvError) as caught:
        variable.get({variable.name: text})
    sentence = str(caught.value)
    assert sentence.startswith(variable.name)
    assert words in sentence
    assert sentence.endswith(".")
    assert "s3cret" not in sentence


@pytest.mark.parametrize("variable", env.VARIABLES, ids=lambda variable: variable.name)
def test_unset_and_empty_are_the_default(variable: env.Variable[Any]) -> None:
    assert variable.get({}) == variable.default
    assert variable.get({variable.name: "  "}) == variable.default
    assert variable.doc
    assert variable.kind


def test_every_variable_is_listed_once() -> None:
    defined = {id(value) for value in vars(env).values() if isinstance(value, env.Variable)}
    assert defined == {id(variable) for variable in env.VARIABLES}
    assert len({variable.name for variable in env.VARIABLES}) == len(env.VARIABLES)


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    assert env.SECRET_KEY.get({"DRAFTPROOF_SECRET_KEY_FILE": str(path)}) == KEY


@pytest.mark.parametrize(("content", "words"), [(None, "cannot be read"), ("", "is empty")])
def test_a_secret_file_that_is_no_use(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(env.EnvError, match=words):
        env.SECRET_KEY.get({"DRAFTPROOF_SECRET_KEY_FILE": str(path)})


def test_a_secret_given_twice_is_refused(tmp_path: Path) -> None:
    both = {"DRAFTPROOF_SECRET_KEY": KEY, "DRAFTPROOF_SECRET_KEY_FILE": str(tmp_path / "key")}
    with pytest.raises(env.EnvError, match="not both"):
        env.SECRET_KEY.get(both)


def test_what_is_no_secret_has_no_file_form(tmp_path: Path) -> None:
    (tmp_path / "debug").write_text("1")
    assert env.DEBUG.get({"DRAFTPROOF_DEBUG_FILE": str(tmp_path / "debug")}) is False


def test_a_key_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTPROOF_SECRET_KEY", raising=False)
    monkeypatch.delenv("DRAFTPROOF_BASE_URL", raising=False)
    monkeypatch.setenv("DRAFTPROOF_VAR_DIR", str(tmp_path / "var"))
    first = env.secret_key()
    assert len(first) >= 50
    assert env.secret_key() == first
    kept = list((tmp_path / "var").iterdir())
    assert [path.name for path in kept] == ["secret-key"]
    assert stat.S_IMODE(kept[0].stat().st_mode) == 0o600


def test_a_site_for_others_must_be_given_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTPROOF_SECRET_KEY", raising=False)
    monkeypatch.setenv("DRAFTPROOF_BASE_URL", "https://draftproof.example.com")
    with pytest.raises(env.EnvError, match="Set DRAFTPROOF_SECRET_KEY"):
        env.secret_key()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://us%40er:p%2Fw@db.example.com:5433/na-me?sslmode=require",
            {"USER": "us@er", "PASSWORD": "p/w", "HOST": "db.example.com", "PORT": "5433",
             "NAME": "na-me", "OPTIONS": {"sslmode": "require"}},
        ),
        (
            "postgresql:///name?host=/run/postgresql",
            {"USER": "", "PASSWORD": "", "HOST": "/run/postgresql", "PORT": "", "NAME": "name",
             "OPTIONS": {}},
        ),
    ],
)  # fmt: skip
def test_database_address(url: str, expected: dict[str, object]) -> None:
    found = env.database_settings(url)
    assert {key: found[key] for key in expected} == expected
