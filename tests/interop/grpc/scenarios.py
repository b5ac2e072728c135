"""What the official clients of RocketMQ 5 are put through. Each scenario mostly waits, and minds no other."""

from __future__ import annotations

import time
from typing import Any

from tests.interop.drivers import PATIENCE, DriverRun
from tests.interop.grpc.stage import Act
from verniermq.client.errors import NoRoute
from verniermq.client.sync import Admin

MANY = 1000
SPEAKS_TLS = ("java", "go")
"""Unless told otherwise."""
SOON = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
"""A message that failed is tried again after a second, however often it did."""


def enough(run: DriverRun) -> DriverRun:
    """Wait until a consumer has what it wants. It would close now; all but Python's wait for their last poll then."""
    run.wait_for("summary", PATIENCE)
    run.kill()
    return run


def bodies(run: Any, event: str = "received") -> list[str]:
    return [line["body"] for line in run.events(event)]


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def many(act: Act) -> None:
    driver, tls = act.driver, str(act.driver.client in SPEAKS_TLS).lower()
    where = {"endpoint": act.broker.endpoint, "topic": act.name("many"), "tls": tls}
    driver.run("send", count=MANY, **where)
    push = driver.start("push", group=act.name("pushed"), count=MANY, timeout=120, **where)
    simple = driver.start("simple", group=act.name("taken"), count=MANY, timeout=120, **where)

    assert sorted(bodies(simple.finish())) == sorted(numbered("m", MANY))
    assert sorted(set(bodies(push.finish()))) == sorted(numbered("m", MANY))
    assert all(line["properties"]["n"] in line["body"] for line in simple.events("received"))


def order_and_sql(act: Act) -> None:
    driver, where = act.driver, {"endpoint": act.broker.endpoint}
    act.broker.make_group(act.name("in-order"), consumeMessageOrderly=True)
    fifo = {"topic": act.name("fifo"), **where}
    sql = {"topic": act.name("sql"), **where}
    sent = driver.start("send", kind="fifo", count=30, prefix="f", **fifo)
    driver.run("send", count=10, prefix="s", **sql)
    sent.finish()

    in_order = driver.start("push", group=act.name("in-order"), count=30, **fifo)
    chosen = driver.start("simple", group=act.name("g"), count=3, sql="n > 6", **sql)

    lines = enough(in_order).events("received")
    for group in range(3):
        of_group = [line["body"] for line in lines if line["group"] == f"group-{group}"]
        assert list(dict.fromkeys(of_group)) == [f"f-{number}" for number in range(group, 30, 3)]
    assert sorted(bodies(chosen.finish())) == ["s-7", "s-8", "s-9"]


def delays_and_transactions(act: Act) -> None:
    driver, where = act.driver, {"endpoint": act.broker.endpoint, "topic": act.name("mixed")}
    sends = [
        driver.start("send", kind="delay", count=2, prefix="late", **where),
        driver.start("send", kind="recall", count=2, prefix="gone", delay_ms=20_000, **where),
        driver.start("send", kind="commit", count=2, prefix="committed", **where),
        driver.start("send", kind="rollback", count=2, prefix="rolled", **where),
    ]
    for send in sends:
        send.finish()
    mixed = driver.run("simple", group=act.name("g"), count=4, **where)

    assert sorted(bodies(mixed)) == ["committed-0", "committed-1", "late-0", "late-1"]


def orphans(act: Act) -> None:
    driver, where = act.driver, {"endpoint": act.broker.endpoint, "topic": act.name("orphans")}
    driver.run("send", kind="orphan", count=2, prefix="orphan", **where)
    asked = driver.start("check", timeout=120, **where)
    found = driver.run("simple", group=act.name("g"), count=2, timeout=120, **where)

    assert sorted(bodies(found)) == ["orphan-0", "orphan-1"]
    assert set(bodies(asked, "checked")) == {"orphan-0", "orphan-1"}


def poison(act: Act) -> None:
    driver, where = act.driver, {"endpoint": act.broker.endpoint, "topic": act.name("poison")}
    group = act.name("failing")
    act.broker.make_group(group, retryMaxTimes=1, groupRetryPolicy=SOON)
    driver.run("send", count=2, prefix="bad", **where)
    failing = driver.start("push", group=group, count=100, fail="bad-1", timeout=120, **where)
    found = dead_letters(act.broker.namesrv, group)
    failing.kill()
    attempts = [(line["body"], line["attempt"]) for line in failing.events("received")]

    assert found == [b"bad-1"]
    assert [attempt for body, attempt in attempts if body == "bad-0"] == [1]
    assert [attempt for body, attempt in attempts if body == "bad-1"] == [1, 2]


def dead_letters(namesrv: str, group: str) -> list[bytes]:
    deadline = time.monotonic() + 120
    with Admin(namesrv=namesrv) as admin:
        while time.monotonic() < deadline:
            try:
                if found := admin.dead_letters(group):
                    return [message.body for message in found]
            except NoRoute:
                pass  # none yet
            time.sleep(0.5)
    return []
