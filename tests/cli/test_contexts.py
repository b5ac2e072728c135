"""``verniermq context``, ``--context`` and ``VERNIERMQ_CONTEXT``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.client.place import Place
from verniermq.cli import main
from verniermq.cli.contextfile import ClusterContext, ContextError, Contexts

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VERNIERMQ_NAMESRV", "NAMESRV_ADDR", "VERNIERMQ_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "verniermq" / "contexts.toml"


def run(*arguments: str, stdin: str | None = None, **env: str) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin, env=env)


def test_a_context_is_added_chosen_and_used(place: Place, home: Path) -> None:
    name = place.name("cli")
    added = run("context", "add", "here", "--namesrv", place.namesrv)
    run("context", "add", "elsewhere", "--namesrv", NOBODY)
    run("context", "select", "elsewhere")

    assert added.output == f"context here is added in {home}\n"
    assert run("topic", "list").exit_code == 2
    assert run("--context", "here", "topic", "create", name).exit_code == 0
    assert name in run("topic", "list", VERNIERMQ_CONTEXT="here").output
    # What was only selected goes behind an address that is said, wherever that is.
    assert name in run("topic", "list", VERNIERMQ_NAMESRV=place.namesrv).output
    assert name in run("topic", "list", "--namesrv", place.namesrv).output
    # What is named goes before the environment.
    assert run("--context", "elsewhere", "topic", "list", VERNIERMQ_NAMESRV=place.namesrv).exit_code == 2
    assert "VERNIERMQ_NAMESRV" not in os.environ


def test_the_commands_of_plugins_follow_the_context_too(place: Place) -> None:
    run("context", "add", "here", "--namesrv", place.namesrv)

    assert run("--context", "here", "dlq", "list").exit_code == 0
    assert run("--context", "here", "flow", "rules", "--json").exit_code == 0


def test_contexts_are_listed_without_their_secrets(home: Path) -> None:
    arguments = ("--namesrv", "10.0.0.5:9876", "--access-key", "operator", "--tls", "--namespace", "shop")
    added = run("context", "add", "prod", *arguments, stdin="p$ss\n")
    run("context", "select", "prod")

    assert added.exit_code == 0, added.output
    assert home.stat().st_mode & 0o777 == 0o600
    assert 'secret_key = "p$ss"' in home.read_text()
    assert json.loads(run("context", "list", "--json").output) == {
        "context": "prod", "current": True, "namesrv": "10.0.0.5:9876", "access_key": "operator",
        "secret_key": "********", "tls": True, "namespace": "shop",
    }  # fmt: skip
    table = run("context", "list").output
    assert ("prod" in table, "p$ss" in table) == (True, False)


def test_what_is_said_of_a_context_reaches_the_client(home: Path) -> None:
    run("context", "add", "prod", "--namesrv", "10.0.0.5:9876", "--access-key", "operator", stdin="secret\n")
    run("context", "add", "prod", "--namespace", "shop")

    options = Contexts.load(home).get("prod").options()

    assert options["namesrv"] == "10.0.0.5:9876"
    assert options["namespace"] == "shop"
    assert options["credentials"] is not None
    assert options["credentials"].secret_key == "secret"
    assert "secret" not in repr(Contexts.load(home).get("prod"))


def test_a_context_is_forgotten_when_that_is_confirmed(home: Path) -> None:
    run("context", "add", "old", "--namesrv", NOBODY)
    run("context", "select", "old")

    assert run("context", "remove", "old").exit_code == 2
    assert run("context", "remove", "old", "--yes").exit_code == 0
    assert Contexts.load(home) == Contexts(home, {})
    assert run("context", "list").output.startswith("no contexts")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contexts = 3", r"expected current = \"name\""),
        ("[contexts.a]\nnamesrv = 3", r"\[contexts.a\]: namesrv = 3, expected a text"),
        ("[contexts.a]\nnamserv = 'x:1'", r"has no setting 'namserv'; it knows namesrv"),
        ("[contexts.a]\ntls = 'yes'", r"tls = 'yes', expected true or false"),
        ("[contexts", "is no TOML"),
    ],
)
def test_a_file_that_is_wrong_is_said_with_its_place(home: Path, text: str, message: str) -> None:
    home.parent.mkdir()
    home.write_text(text)

    with pytest.raises(ContextError, match=message):
        Contexts.load(home)
    assert run("topic", "list").exit_code == 2
    # What is not about a cluster works all the same.
    assert run("config", "show").exit_code == 0


def test_an_unknown_context_is_said_with_those_that_are_known() -> None:
    none = run("--context", "prod", "topic", "list")
    run("context", "add", "test", "--namesrv", NOBODY)
    some = run("--context", "prod", "topic", "list")
    incomplete = run("context", "add", "new")

    assert (none.exit_code, some.exit_code, incomplete.exit_code) == (2, 2, 2)
    assert "there are none yet; add it with: verniermq context add prod" in none.stderr
    assert "known are test" in some.stderr
    assert "needs its name server" in incomplete.stderr


def test_certificates_that_cannot_be_read_are_said() -> None:
    with pytest.raises(ContextError, match=r"ca_file '/nowhere\.pem' cannot be read"):
        ClusterContext(name="a", namesrv=NOBODY, tls=True, ca_file="/nowhere.pem").options()


def test_a_question_names_the_context(place: Place) -> None:
    run("context", "add", "here", "--namesrv", place.namesrv)
    name = place.name("cli")
    run("--context", "here", "topic", "create", name)

    asked = run("--context", "here", "topic", "delete", name)

    assert (asked.exit_code, f"[here] delete topic {name}" in asked.output) == (2, True)
