"""Rights as RocketMQ 5 writes them down: which entry decides."""

from __future__ import annotations

from typing import Any

import pytest

from verniermq.kernel import InvalidParameter
from verniermq.plugins.acl.policies import MOST_ENTRIES, Policies, Resource

PUB, SUB = frozenset({"Pub"}), frozenset({"Sub"})
HERE = "10.0.0.5"


def entry(resource: str, actions: str = "All", decision: str = "Allow", *addresses: str) -> dict[str, Any]:
    return {"resource": resource, "actions": actions.split(","), "decision": decision, "sourceIps": list(addresses)}


def policies(*custom: dict[str, Any], default: tuple[dict[str, Any], ...] = ()) -> Policies:
    listed = [{"policyType": "Custom", "entries": list(custom)}, {"policyType": "Default", "entries": list(default)}]
    return Policies.from_json([policy for policy in listed if policy["entries"]])


def decision(table: Policies, kind: str, name: str, actions: frozenset[str] = PUB, address: str = HERE) -> str:
    found = table.decide(kind, name, actions, address)
    return "none" if found is None else f"{found.decision} {found.resource}"


@pytest.mark.parametrize(
    ("entries", "decided"),
    [
        ([entry("Topic:orders")], "Allow Topic:orders"),
        ([entry("Topic:order")], "none"),
        ([entry("Topic:ord*")], "Allow Topic:ord*"),
        ([entry("Topic:*")], "Allow Topic:*"),
        ([entry("*")], "Allow *"),
        ([entry("Group:orders"), entry("Cluster:orders")], "none"),
        ([entry("topic:orders", "pub", "allow")], "Allow Topic:orders"),
        ([entry("Topic:orders", "Sub,Get")], "none"),
        ([entry("Topic:orders", "Sub,Pub")], "Allow Topic:orders"),
        ([entry("Topic:ord*", decision="Deny"), entry("Topic:orders")], "Allow Topic:orders"),
        ([entry("Topic:ord*"), entry("Topic:orders", decision="Deny")], "Deny Topic:orders"),
        ([entry("Topic:o*", decision="Deny"), entry("Topic:ord*")], "Allow Topic:ord*"),
        ([entry("Topic:*", decision="Deny"), entry("Topic:o*")], "Allow Topic:o*"),
        ([entry("*", decision="Deny"), entry("Topic:*")], "Allow Topic:*"),
        ([entry("*"), entry("Topic:*", decision="Deny")], "Deny Topic:*"),
        ([entry("Topic:orders", "Sub", "Deny"), entry("Topic:*")], "Allow Topic:*"),
    ],
)
def test_the_closest_entry_that_fits_decides(entries: list[dict[str, Any]], decided: str) -> None:
    assert decision(policies(*entries), "Topic", "orders") == decided
    assert decision(policies(*reversed(entries)), "Topic", "orders") == decided


def test_a_default_counts_only_when_no_custom_entry_fits() -> None:
    table = policies(entry("Topic:*", "Sub", "Deny"), default=(entry("Topic:orders", "Pub,Sub"),))
    assert decision(table, "Topic", "orders", SUB) == "Deny Topic:*"
    assert decision(table, "Topic", "orders", PUB) == "Allow Topic:orders"


@pytest.mark.parametrize(
    ("addresses", "fits"),
    [
        ((), True),
        (("10.0.0.5",), True),
        (("10.0.0.0/8",), True),
        (("192.168.0.1", "10.0.0.*"), True),
        (("fd00::/8",), False),
    ],
)
def test_an_entry_may_be_for_some_addresses_only(addresses: tuple[str, ...], fits: bool) -> None:
    table = policies(entry("Topic:orders", "All", "Allow", *addresses))
    assert (decision(table, "Topic", "orders") != "none") is fits


@pytest.mark.parametrize(
    "wrong",
    [
        entry("orders"), entry("Topic:"), entry("Topic:a*b"), entry("Queue:a"), entry("Topic:a", "Any"),
        entry("Topic:a", "Read"), entry("Topic:a", decision="Maybe"), entry("Topic:a", "All", "Allow", "here"),
        {**entry("Topic:a"), "actions": []}, {**entry("Topic:a"), "actions": "Pub"},
        {**entry("Topic:a"), "actions": [1]},
        {**entry("Topic:a"), "sourceIps": "10.0.0.1"}, {**entry("Topic:a"), "sourceIps": [1]}, {"resource": None}, {},
    ],
)  # fmt: skip
def test_an_entry_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        policies(wrong)


@pytest.mark.parametrize(
    "wrong", [None, [], {}, [1], [{}], [{"entries": [1]}], [{"policyType": "x", "entries": [entry("*")]}]]
)
def test_policies_that_are_none_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidParameter):
        Policies.from_json(wrong)


def test_an_entry_for_the_same_resource_replaces_the_old_one() -> None:
    table = policies(entry("Topic:a", "Pub"), entry("Topic:b")).changed(policies(entry("Topic:a", "Sub", "Deny")))
    assert decision(table, "Topic", "a", PUB) == "none"
    assert decision(table, "Topic", "a", SUB) == "Deny Topic:a"
    assert decision(table, "Topic", "b") == "Allow Topic:b"
    assert decision(table.without("Custom", Resource.parse("Topic:b")), "Topic", "b") == "none"


def test_policies_are_read_as_they_were_written() -> None:
    table = policies(
        entry("Topic:a*", "Pub,Sub", "Allow", "10.0.0.0/8"), entry("*", decision="Deny"), default=(entry("Group:*"),)
    )
    assert Policies.from_json(table.as_json()) == table
    assert [line["resource"] for line in table.as_json("Topic")[0]["entries"]] == ["Topic:a*"]


def test_a_user_has_a_limited_number_of_entries() -> None:
    full = policies(*[entry(f"Topic:t{number}") for number in range(MOST_ENTRIES)])
    with pytest.raises(InvalidParameter, match="use prefixes"):
        full.changed(policies(entry("Topic:more")))
