"""What the plugin ``trace`` writes, read by Apache's own ``mqadmin queryMsgTraceById``."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from verniermq.client import Message, Producer, PushConsumer

from .apache import ApacheBroker, mqadmin
from .drivers import Driver
from .toolchains import driver_command
from .verniermq_process import VernierMQBroker

# Building a driver for the first time fetches the client and all it depends on.
pytestmark = pytest.mark.timeout(300)

TRACED = '[plugins]\nenable = ["default", "trace"]\n[plugins.trace]\ninterval = "200ms"\n'
INDEXED_WITHIN = 60.0


def traces(namesrv: str, message_id: str, home: Path, rows: int) -> list[list[str]]:
    """The lines about one message, as soon as the index knows so many: kind, group, host, how it ended."""
    deadline = time.monotonic() + INDEXED_WITHIN
    while True:
        printed = mqadmin(namesrv, "queryMsgTraceById", "-i", message_id, home=home).stdout
        found = [re.split(r"\s{2,}|(?<=ms) ", line.strip()) for line in printed.splitlines() if line[:1].isalpha()]
        if len(found) >= rows or time.monotonic() > deadline:
            assert len(found) == rows, printed
            return [[line[0], line[1], line[2], line[-1]] for line in found]


async def send_and_consume(namesrv: str) -> str:
    """One message from a producer to a consumer, both in Python, both traced; the message's id."""
    async with Producer("py-producers", namesrv=namesrv, plugins=["trace"]) as producer:
        result = await producer.send(Message("traced", b"hello", tags="paid", keys=["T1"]))
    consumer: Any = PushConsumer("py-consumers", namesrv=namesrv, plugins=["trace"], start="first")
    consumer.subscribe("traced")
    received = anyio.Event()

    @consumer.on_message
    async def take(message: Any) -> None:
        received.set()

    async with consumer:
        with anyio.fail_after(30):
            await received.wait()
    return result.message_id


@pytest.mark.parametrize("kind", [VernierMQBroker, ApacheBroker], ids=["verniermq", "apache"])
def test_mqadmin_reads_the_traces_of_python_clients(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path) as broker:
        message_id = anyio.run(send_and_consume, broker.namesrv)

        pub, sub = traces(broker.namesrv, message_id, tmp_path, 2)

    assert pub == ["Pub", "py-producers", "127.0.0.1", "success"]
    assert sub == ["Sub", "py-consumers", "127.0.0.1", "success"]


@pytest.mark.parametrize("client", ["java5", "go"])
def test_mqadmin_reads_the_broker_s_traces_of_clients_that_do_not_trace(tmp_path: Path, client: str) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(TRACED)
    driver = Driver(client, driver_command(client), tmp_path)
    with VernierMQBroker(tmp_path, config=config) as broker:
        run = driver.run("produce", namesrv=broker.namesrv, topic="untraced", group="others", count=3)
        message_id = str(run.events("sent")[0]["msgId"])

        (pub,) = traces(broker.namesrv, message_id, tmp_path, 1)

    assert pub[0] == "Pub"
    assert pub[1] == "others"
    assert pub[3] == "success"
