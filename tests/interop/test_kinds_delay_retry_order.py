"""The Java clients delay, fail and consume in order: what comes when, what dies, and who gets a queue."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .apache import ApacheBroker
from .drivers import Driver, DriverRun, Event
from .toolchains import driver_command
from .verniermq_process import VernierMQBroker

pytestmark = pytest.mark.timeout(300)

SHORT_LEVELS = """\
[plugins.schedule]
levels = ["1s", "3s", "200ms", "400ms", "600ms", "800ms"]
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[VernierMQBroker]:
    config = tmp_path / "broker.toml"
    config.write_text(SHORT_LEVELS)
    with VernierMQBroker(tmp_path, config=config) as running:
        yield running


@contextlib.contextmanager
def a_driver(client: str, folder: Path) -> Iterator[Driver]:
    driver = Driver(client, driver_command(client), folder)
    try:
        yield driver
    finally:
        driver.close()


@pytest.fixture(params=["java5", "java4"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    with a_driver(request.param, tmp_path) as driver:
        yield driver


@pytest.fixture
def newest(tmp_path: Path) -> Iterator[Driver]:
    """For what the two versions do alike, or only the newer one does."""
    with a_driver("java5", tmp_path) as driver:
        yield driver


def to(broker: VernierMQBroker, group: str, topic: str = "interop") -> dict[str, object]:
    return {"namesrv": broker.namesrv, "topic": topic, "group": group}


def test_levels_and_times_come_when_they_are_due_and_what_was_recalled_never(
    driver: Driver, broker: VernierMQBroker
) -> None:
    recall = driver.client == "java5"
    run = driver.run("delay", **to(broker, "waiting"), timed_ms=2250, timeout=60, recall=str(recall).lower())

    sent = {event["index"]: event for event in run.events("sent")}
    received = {event["index"]: event for event in run.events("received")}
    assert sorted(event["index"] for event in run.events("received")) == [0, 1, 2, 3]
    # The broker's own clock says when each was delivered; the time of its arrival depends on the machine's load.
    assert received[1]["stored"] - sent[1]["at"] >= 1000
    assert received[2]["stored"] - sent[2]["at"] >= 3000
    assert received[3]["stored"] >= int(sent[3]["deliver"])
    assert [received[index]["tag"] for index in range(4)] == ["TagA", "TagB", "TagC", "TagA"]
    if recall:
        (recalled,) = run.events("recalled")
        assert recalled["id"] == recalled["unique"]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
def test_a_message_that_keeps_failing_ends_among_the_dead_letters(
    newest: Driver, broker: VernierMQBroker, orderly: bool
) -> None:
    newest.run("produce", **to(broker, "senders"), count=4)
    failing = newest.start(
        "retry", **to(broker, "failing"), poison=2, attempts=4, expect=4, timeout=60, orderly=str(orderly).lower()
    )
    failing.finish(90)
    dead = newest.run("consume", **to(broker, "undertakers", "%DLQ%failing"), start=2, expect=1, timeout=60)

    attempts = [event for event in failing.events("attempt") if event["index"] == 2]
    assert [event["times"] for event in attempts] == [0, 1, 2, 3]
    assert {event["topic"] for event in attempts} == {"interop"}
    assert sorted(event["index"] for event in failing.events("attempt") if event["index"] != 2) == [0, 1, 3]
    (letter,) = dead.events("received")
    assert letter["index"] == 2
    assert letter["bodyOk"]
    assert letter["key"] == "key-2"
    if not orderly:
        waits = [later["at"] - earlier["at"] for earlier, later in itertools.pairwise(attempts)]
        # Levels 3, 4 and 5; never earlier.
        assert all(wait >= level for wait, level in zip(waits, (200, 400, 600), strict=True))


def test_three_orderly_consumers_keep_each_queues_order_when_one_is_killed(
    newest: Driver, broker: VernierMQBroker
) -> None:
    newest.run("produce", **to(broker, "senders"), count=4)
    members = [newest.start("orderly", **to(broker, "orderly"), timeout=120, pause_ms=15) for _ in range(3)]
    for member in members:
        member.wait_for("started", timeout=60)
    newest.run("produce", **to(broker, "senders"), start=4, count=596)
    wait_until(lambda: min(len(queues_of(member)) for member in members) > 0, "every member has a queue")

    victim = max(members, key=lambda member: len(queues_of(member)))
    victim.kill()
    wait_until(lambda: len(indexes(members)) == 600, "everything was consumed")
    for member in members:
        if member is not victim:
            member.terminate()

    for queue in range(4):
        check_order(queue, members)


def check_order(queue: int, members: list[DriverRun]) -> None:
    """One owner at a time; each goes on where the one before stopped, or repeats what that had not committed."""
    seen: list[tuple[int, int, int]] = []
    for number, member in enumerate(members):
        mine = [(e["at"], number, e["queueOffset"]) for e in member.events("received") if e["queueId"] == queue]
        seen += mine
    seen.sort(key=lambda event: event[0])
    highest = -1
    for _, events in itertools.groupby(seen, key=lambda event: event[1]):
        offsets = [offset for _, _, offset in events]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), f"queue {queue}: {offsets}"
        assert offsets[0] <= highest + 1, f"queue {queue}: a gap before {offsets[0]}"
        highest = max(highest, offsets[-1])


def queues_of(member: DriverRun) -> set[int]:
    return {event["queueId"] for event in member.events("received")}


def indexes(members: list[DriverRun]) -> set[int]:
    return {event["index"] for member in members for event in member.events("received")}


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 90) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.1)


# --- the files -----------------------------------------------------------------------------


def test_an_apache_broker_goes_on_with_what_waits_in_our_store(newest: Driver, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    # Sizes are not written into the files: both sides have to be told the same.
    config.write_text('[store]\nsegment_size = "16MiB"\n[plugins.schedule]\ntimer_file_size = "1MiB"\n')
    ours = VernierMQBroker(tmp_path, config=config)
    with ours:
        sent = send_delayed(newest, ours.namesrv)
    with ApacheBroker(tmp_path, store=ours.store) as apache:
        check_delayed(newest, apache.namesrv, sent)


def test_we_go_on_with_what_waits_in_an_apache_brokers_store(newest: Driver, tmp_path: Path) -> None:
    with ApacheBroker(tmp_path) as apache:
        sent = send_delayed(newest, apache.namesrv)
        apache.stop()
    config = tmp_path / "broker.toml"
    config.write_text('[store]\nsegment_size = "16MiB"\n')
    with VernierMQBroker(tmp_path, store=apache.store, config=config) as ours:
        check_delayed(newest, ours.namesrv, sent)


def send_delayed(driver: Driver, namesrv: str) -> dict[int, Event]:
    run = driver.run(
        "delay", namesrv=namesrv, topic="interop", group="senders", level=3, timed_ms=12_000, timeout=1,
        send_only="true",
    )  # fmt: skip
    return {event["index"]: event for event in run.events("sent")}


def check_delayed(driver: Driver, namesrv: str, sent: dict[int, Event]) -> None:
    run = driver.run("consume", namesrv=namesrv, topic="interop", group="readers", expect=4, timeout=60, linger_ms=3000)

    received = run.events("received")
    assert sorted(event["index"] for event in received) == [0, 1, 2, 3]
    assert all(event["bodyOk"] for event in received)
    assert set(sent) == {0, 1, 2, 3}
