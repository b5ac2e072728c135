"""One store, two brokers: what VernierMQ wrote, an Apache broker serves, goes on with and hands back, three times.

In each turn a broker opens the store as the other one left it. The Java client reads every message of every topic,
goes on where its group was, and finds messages by key; then it writes more of all sorts, and the broker stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from .apache import ApacheBroker
from .drivers import Driver, DriverRun, Event
from .targets import Target
from .verniermq_process import VernierMQBroker

pytestmark = pytest.mark.timeout(600)

# Small files, so that there are many; both sides must be told the same.
SEGMENT, QUEUE_ENTRIES, SLOTS, ENTRIES, TIMERS = 64 * 1024, 100, 100, 500, 1024 * 1024
VERNIERMQ = f"""\
[store]
segment_size = {SEGMENT}
max_message_size = "32KiB"
queue_entries = {QUEUE_ENTRIES}

[plugins.query]
slots = {SLOTS}
entries = {ENTRIES}

[plugins.schedule]
timer_file_size = {TIMERS}
"""
APACHE = {
    "mappedFileSizeCommitLog": str(SEGMENT),
    "mappedFileSizeConsumeQueue": str(QUEUE_ENTRIES * 20),
    "maxHashSlotNum": str(SLOTS),
    "maxIndexNum": str(ENTRIES),
    "mappedFileSizeTimerLog": str(TIMERS),
    # Without it, an Apache broker that comes up after a crash forgets the keys of messages that it does not read again.
    "messageIndexSafe": "true",
}

MAIN, RETRY_GROUP = "main", "retriers"
OTHERS = [f"other-{number:02d}" for number in range(24)]
SINGLES, BATCH, DELAYED, TIMED, OTHER_MESSAGES = 24, 12, 4, 4, 96
ROUNDS = 3

Place = tuple[str, int, int]


@attrs.define
class Expected:
    """What the store must have by now."""

    main: int = 0
    """Messages of the main topic have the indexes 0 to this, each once."""
    others: int = 0
    returned: Counter[int] = attrs.Factory(Counter)
    """How often each message of the main topic was given back."""
    places: dict[Place, Event] = attrs.Factory(dict)
    """All that was ever read: a message keeps its place and everything else for good."""
    consumed: int = 0
    """How far the group of the main topic is."""


@pytest.mark.parametrize("driver", ["java5"], indirect=True)
def test_a_store_goes_to_apaches_broker_and_back_three_times(driver: Driver, tmp_path: Path) -> None:
    store, expected = tmp_path / "store", Expected()
    for number in range(ROUNDS):
        with verniermq(tmp_path / f"verniermq-{number}", store) as broker:
            take_over(driver, broker, expected)
            write_more(driver, broker, expected)
            broker.stop()
        with apache(tmp_path / f"apache-{number}", store) as broker:
            take_over(driver, broker, expected)
            write_more(driver, broker, expected)
            broker.stop()
    with verniermq(tmp_path / "verniermq-last", store) as broker:
        take_over(driver, broker, expected)

    assert len(list((store / "commitlog").iterdir())) >= 5
    assert len(list((store / "index").iterdir())) >= 3


@pytest.mark.parametrize("driver", ["java5"], indirect=True)
def test_each_broker_recovers_a_store_that_the_other_left_in_a_crash(driver: Driver, tmp_path: Path) -> None:
    store, expected = tmp_path / "store", Expected()
    with verniermq(tmp_path / "verniermq", store) as broker:
        write_more(driver, broker, expected, at_once=True)
        broker.kill()
    with apache(tmp_path / "apache", store) as broker:
        inspect(driver, broker, expected)
        write_more(driver, broker, expected, at_once=True)
        broker.kill()
    with verniermq(tmp_path / "verniermq-again", store) as broker:
        inspect(driver, broker, expected)


@contextmanager
def verniermq(folder: Path, store: Path) -> Iterator[Target]:
    folder.mkdir()
    config = folder / "broker.toml"
    config.write_text(VERNIERMQ)
    with VernierMQBroker(folder, store, config) as broker:
        yield broker


@contextmanager
def apache(folder: Path, store: Path) -> Iterator[Target]:
    folder.mkdir()
    with ApacheBroker(folder, store, APACHE) as broker:
        yield broker


def take_over(driver: Driver, broker: Target, expected: Expected) -> None:
    """What the brokers before left is there, and the group goes on where it was."""
    if not expected.main:
        return
    go_on(driver, broker, expected)
    inspect(driver, broker, expected)


def inspect(driver: Driver, broker: Target, expected: Expected) -> None:
    """Every message is read at its place, and found by key and by unique key."""
    topics = [MAIN, *OTHERS, *([f"%RETRY%{RETRY_GROUP}"] if expected.returned else [])]
    ranges = {MAIN: range(0, expected.main, 5), OTHERS[0]: range(0, expected.others, len(OTHERS))}
    find = ",".join(f"{topic}:{wanted.start}:{wanted.stop}:{wanted.step}" for topic, wanted in ranges.items())
    reading = run(driver, "store", do="inspect", namesrv=broker.namesrv, topics=",".join(topics), find=find)
    read = {place(event): event for event in reading.events("message")}
    for where, event in expected.places.items():
        assert read[where] == event
    expected.places = read
    for queue in reading.events("queue"):
        offsets = [at for topic, number, at in sorted(read) if (topic, number) == (queue["topic"], queue["queueId"])]
        assert offsets == list(range(queue["min"], queue["max"])) == list(range(queue["max"]))
    for event in read.values():
        assert event["bodyOk"] and event["textOk"] and event["key"] == f"key-{event['index']}", event  # noqa: PT018
    assert indexes(read, MAIN) == Counter(range(expected.main))
    for number, topic in enumerate(OTHERS):
        assert indexes(read, topic) == Counter(range(number, expected.others, len(OTHERS)))
    assert indexes(read, f"%RETRY%{RETRY_GROUP}") == expected.returned
    for event in read.values():
        assert event["reconsumeTimes"] == (1 if event["topic"].startswith("%RETRY%") else 0)
    found = reading.events("found")
    for topic, wanted in ranges.items():
        assert [event["index"] for event in found if event["topic"] == topic] == list(wanted)
    assert all(event["count"] >= 1 and event["bodyOk"] for event in found), found
    assert [event["same"] for event in reading.events("viewed")] == [True, True]


def go_on(driver: Driver, broker: Target, expected: Expected) -> None:
    """The group of the main topic gets what it has not had, those that were delayed over the change among them."""
    new = expected.main - expected.consumed
    received = run(
        driver, "consume", namesrv=broker.namesrv, topic=MAIN, group="keepers", start=expected.consumed, expect=new,
        timeout=60,
    ).events("received")  # fmt: skip
    assert sorted(event["index"] for event in received) == list(range(expected.consumed, expected.main))
    expected.consumed = expected.main


def write_more(driver: Driver, broker: Target, expected: Expected, *, at_once: bool = False) -> None:
    """``at_once``: nothing that a broker delivers later, which a crash may make it deliver twice."""
    later = {} if at_once else {"delayed": DELAYED, "timed": TIMED, "retry_group": RETRY_GROUP}
    writing = run(
        driver, "store", do="write", namesrv=broker.namesrv, topic=MAIN, start=expected.main, singles=SINGLES,
        batch=BATCH, others=",".join(OTHERS), others_start=expected.others, others_count=OTHER_MESSAGES, **later,
    )  # fmt: skip
    assert {event["status"] for event in writing.events("sent")} == {"SEND_OK"}
    expected.main += SINGLES + BATCH + (0 if at_once else DELAYED + TIMED)
    expected.others += OTHER_MESSAGES
    returned = [event["index"] for event in writing.events("returned")]
    assert len(returned) == (0 if at_once else 4)
    expected.returned.update(returned)


def run(driver: Driver, subcommand: str, **options: object) -> DriverRun:
    """Run a driver, and once more if it ended before it did anything.

    A Java client gives up when its first request fails, which one may to a name server that is still warming up.
    """
    first = driver.start(subcommand, **options)
    try:
        return first.finish(timeout=150)
    except AssertionError:
        if any(first.events(kind) for kind in ("started", "queue", "sent")):
            raise
        return driver.start(subcommand, **options).finish(timeout=150)


def place(event: Event) -> Place:
    return (event["topic"], event["queueId"], event["queueOffset"])


def indexes(read: dict[Place, Event], topic: str) -> Counter[int]:
    return Counter(event["index"] for event in read.values() if event["topic"] == topic)
