"""Users made at run time: the table, and its file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from verniermq.kernel import InvalidParameter, JsonFile
from verniermq.kernel.requests import PUB
from verniermq.plugins.acl.policies import Policies, Resource
from verniermq.plugins.acl.users import UserTable

RIGHTS = Policies.from_json([{"entries": [{"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}]}])


def table() -> UserTable:
    users = UserTable()
    users.create("ann", {"password": "ann-secret", "userType": "super"})
    users.create("bob", {"password": "bob-secret"})
    users.set_policies("bob", RIGHTS)
    return users


def test_a_user_is_created_changed_and_deleted() -> None:
    users = table()
    assert users.get("ann").is_super
    assert (users.get("bob").type, users.get("bob").status) == ("Normal", "enable")

    users.update("bob", {"userStatus": "disable", "password": None})
    assert not users.get("bob").is_enabled
    assert users.get("bob").password == "bob-secret"
    assert users.update("bob", {"password": "another"}).password == "another"
    assert [user.name for user in users.listed("o")] == ["bob"]

    assert users.delete("bob")
    assert not users.delete("bob")
    with pytest.raises(InvalidParameter, match="there is no user 'bob'"):
        users.get("bob")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("", {"password": "secret"}), ("a b", {"password": "secret"}), ("a:b", {"password": "secret"}),
        ("x" * 121, {"password": "secret"}), ("ann", {"password": "secret"}), ("carl", {}), ("carl", {"password": " "}),
        ("carl", {"password": 7}), ("carl", {"password": "s" * 2000}), ("carl", {"password": "s", "userType": "God"}),
        ("carl", {"password": "s", "userStatus": 1}),
    ],
)  # fmt: skip
def test_a_user_that_may_not_be_is_refused(name: str, data: dict[str, Any]) -> None:
    users = table()
    with pytest.raises(InvalidParameter):
        users.create(name, data)
    assert len(users) == 2


def test_a_copy_without_its_password_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidParameter, match="brokers do not give passwords out"):
        UserTable().create("bob", table().get("bob").as_json())


def test_rights_are_taken_away_one_by_one_or_all() -> None:
    users = table()
    assert users.delete_policies("bob", "Custom", Resource.parse("Topic:a")).policies.entries == {}
    with pytest.raises(InvalidParameter, match="no rights to take away"):
        users.delete_policies("bob")


def test_the_file_is_the_owners_alone_and_is_read_again(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "acl.json", private=True)
    (tmp_path / "acl.json.tmp").touch(0o644)  # left behind by a crash
    for _ in range(2):
        file.save(table().as_json())

    again = UserTable()
    again.load_json(file.load() or {})

    assert again.as_json() == table().as_json()
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "acl.json": 0o600,
        "acl.json.bak": 0o600,
    }


def test_a_user_shows_no_password() -> None:
    user = table().get("bob")
    assert "bob-secret" not in f"{user!r} {user} {user.as_json()}"


def test_names_that_nothing_can_have_are_not_remembered() -> None:
    bob = table().principal("bob")
    assert bob is not None
    tracemalloc.start()
    try:
        for number in range(100):
            assert bob.refusal("topic", f"{number}{'x' * 100_000}", PUB, "10.0.0.5") is not None
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 1_000_000
