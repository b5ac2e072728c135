"""Unmodified Apache and ali-ons clients send, receive, share a group and survive a restart of the broker."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from .drivers import Driver, DriverRun, Event
from .targets import Target

# Building a driver for the first time fetches the client and all it depends on.
pytestmark = pytest.mark.timeout(300)

COUNT = 1000
NEW = 100
MEMBERS = 3
WAVE = 60


def test_a_thousand_messages_arrive_as_they_were_sent(driver: Driver, target: Target, topic: str) -> None:
    sent = send(driver, target, topic, 0, COUNT)
    received = driver.run("consume", **to(target, topic, "readers"), expect=COUNT, timeout=60)

    assert_acknowledged_in_order(sent.events("sent"), COUNT)
    assert_arrived(received, range(COUNT))
    assert positions(received.events("received")) == positions(sent.events("sent"))


def test_three_consumers_share_the_queues(driver: Driver, target: Target, topic: str) -> None:
    send(driver, target, topic, 0, WAVE)  # so that the topic exists before anybody subscribes
    group = driver.start("consume", **to(target, topic, "sharers"), expect=COUNT, timeout=100, members=MEMBERS)
    group.wait_for("started", timeout=60)

    # Whoever starts first owns every queue until the group has rebalanced. Small waves show when it has.
    next_index = WAVE
    while next_index + WAVE < COUNT and len(members_of(group)) < MEMBERS:
        send(driver, target, topic, next_index, WAVE)
        next_index += WAVE
    send(driver, target, topic, next_index, COUNT - next_index)
    group.finish()

    assert_arrived(group, range(COUNT), at_least_once=True)
    assert len(members_of(group)) == MEMBERS
    after_balance = [event for event in group.events("received") if event["index"] >= next_index]
    assert len(members_of_events(after_balance)) == MEMBERS


def test_messages_and_progress_survive_a_restart(driver: Driver, target: Target, topic: str) -> None:
    send(driver, target, topic, 0, COUNT)
    driver.run("consume", **to(target, topic, "old"), expect=COUNT, timeout=60)

    target.restart()
    newcomers = driver.run("consume", **to(target, topic, "new"), expect=COUNT, timeout=60)
    send(driver, target, topic, COUNT, NEW)
    regulars = driver.run("consume", **to(target, topic, "old"), start=COUNT, expect=NEW, timeout=60)

    assert_arrived(newcomers, range(COUNT))
    # Both sides were stopped properly, so the group's progress was stored to the last message.
    assert_arrived(regulars, range(COUNT, COUNT + NEW))


def to(target: Target, topic: str, group: str) -> dict[str, object]:
    return {"namesrv": target.namesrv, "topic": topic, "group": group}


def send(driver: Driver, target: Target, topic: str, start: int, count: int) -> DriverRun:
    return driver.run("produce", **to(target, topic, "senders"), start=start, count=count)


def assert_acknowledged_in_order(sent: list[Event], count: int) -> None:
    """Every message acknowledged, and within a queue each one right behind the one before."""
    assert [event["index"] for event in sent] == list(range(count))
    assert {event["status"] for event in sent} == {"SEND_OK"}
    next_offset: dict[int, int] = {}
    for event in sent:
        assert event["queueOffset"] == next_offset.get(event["queueId"], 0)
        next_offset[event["queueId"]] = event["queueOffset"] + 1


def assert_arrived(run: DriverRun, indexes: Iterable[int], at_least_once: bool = False) -> None:
    """Exactly these messages arrived, whole, with what was attached to them."""
    received = run.events("received")
    arrived = [event["index"] for event in received]
    assert sorted(set(arrived) if at_least_once else arrived) == list(indexes)
    for event in received:
        assert event["bodyOk"], event
        assert event["textOk"], event
        assert event["key"] == f"key-{event['index']}"
        assert event["tag"] == ("TagA", "TagB", "TagC")[event["index"] % 3]
        assert event["reconsumeTimes"] == 0


def positions(events: list[Event]) -> dict[int, tuple[int, int]]:
    return {event["index"]: (event["queueId"], event["queueOffset"]) for event in events}


def members_of(run: DriverRun) -> set[str]:
    return members_of_events(run.events("received"))


def members_of_events(events: list[Event]) -> set[str]:
    return {event["member"] for event in events}
