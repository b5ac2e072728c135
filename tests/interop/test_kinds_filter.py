"""Tags, SQL conditions and delay levels with unmodified clients: exactly what was asked for arrives, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from verniermq.testing import BrokerProcess, broker_process

from .drivers import Driver
from .wire import create_topic

# Building a driver for the first time fetches the client and all it depends on.
pytestmark = pytest.mark.timeout(300)

TOPIC = "kinds"
TAGS = "TagA || TagC"
SQL = "TAGS IN ('TagA', 'TagC') AND index BETWEEN 30 AND 89"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "store") as process:
        create_topic(process.broker, process.namesrv, TOPIC)
        yield process


def to(broker: BrokerProcess, group: str) -> dict[str, object]:
    return {"namesrv": broker.namesrv, "topic": TOPIC, "group": group}


def test_a_consumer_gets_what_its_tags_or_its_condition_let_through(driver: Driver, broker: BrokerProcess) -> None:
    has_sql = driver.client != "node"
    wanted = {"expect": 80, "tags": TAGS}
    runs = [driver.start("consume", **to(broker, "by-tag"), **wanted, timeout=60)]
    if has_sql:
        of_condition = {"sql": SQL, "start": 30, "expect": 40, "tags": TAGS}
        runs.append(driver.start("consume", **to(broker, "by-sql"), **of_condition, timeout=60))
    driver.run("produce", **to(broker, "senders"), count=120)
    for run in runs:
        run.finish()

    expected = [[index for index in range(120) if index % 3 != 1], [index for index in range(30, 90) if index % 3 != 1]]
    for run, indexes in zip(runs, expected, strict=False):
        received = run.events("received")
        assert sorted(event["index"] for event in received) == indexes
        assert all(event["bodyOk"] and event["textOk"] for event in received)


@pytest.mark.parametrize("driver", ["java5", "java4"], indirect=True)
def test_a_condition_that_cannot_be_read_fails_the_start_with_the_reason(driver: Driver, broker: BrokerProcess) -> None:
    run = driver.start("consume", **to(broker, "hopeless"), sql="index >", expect=1, timeout=60)

    assert run.end() == 3
    (refused,) = run.events("refused")
    assert refused["code"] == 23  # SUBSCRIPTION_PARSE_FAILED
    assert "SQL expression refused at line 1, column 8" in refused["error"]


@pytest.mark.parametrize("driver", ["go", "node"], indirect=True)
def test_a_delay_level_is_kept(driver: Driver, broker: BrokerProcess) -> None:
    driver.run("produce", **to(broker, "senders"), count=3, level=1)
    run = driver.run("consume", **to(broker, "readers"), expect=3, timeout=60)

    received = run.events("received")
    assert sorted(event["index"] for event in received) == [0, 1, 2]
    assert all(event["waited"] >= 1000 for event in received)
