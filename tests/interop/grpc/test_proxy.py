"""``verniermq proxy`` in front of Apache's broker, which has no gRPC port."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import grpc.aio
import pytest

from tests.grpc.rocketmq5 import Client, consumer_settings, make_message, named
from tests.interop.apache import ApacheBroker
from tests.interop.drivers import PATIENCE
from tests.interop.grpc import scenarios
from tests.interop.grpc.broker import UPDATE_GROUP
from tests.interop.grpc.stage import Stage, beside, running_stage
from tests.interop.processes import ServerProcess
from tests.interop.wire import SUCCESS, request
from verniermq.contrib.grpc.enums import ClientType, Code, MessageType

pytestmark = pytest.mark.timeout(600)

PROPERTIES = {
    "transactionTimeOut": "1000",
    # It asks again before it has taken in the answer, and then stores the message twice.
    "transactionCheckInterval": "8000",
    "recallMessageEnable": "true",
    # A virtual machine that still warms up is no reason to refuse a message.
    "waitTimeMillsInSendQueue": "60000",
}
CLIENTS = ("python", "java")
IN_ORDER = {"message_type": MessageType.FIFO, "message_group": "g"}


class Proxy:
    """A proxy and the broker behind it."""

    def __init__(self, apache: ApacheBroker, folder: Path) -> None:
        self.namesrv = apache.namesrv
        self._broker = apache.broker
        command = [sys.executable, "-m", "verniermq.cli", "proxy", "--namesrv", apache.namesrv, "--port", "0"]
        log = folder / "proxy.log"
        self.process = ServerProcess("proxy", [*command, "--folder", str(folder)], log)
        self.process.wait_until(lambda: "proxy listening" in log.read_text(), 60)
        (self.endpoint,) = re.findall(r"proxy listening on (\S+),", log.read_text())

    def make_group(self, name: str, **members: Any) -> None:
        body = json.dumps({"groupName": name, **members}).encode()
        answer = request(self._broker, UPDATE_GROUP, body=body)
        assert answer.code == SUCCESS, answer


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("proxy")
    with ApacheBroker(folder, properties=PROPERTIES) as apache:
        proxy = Proxy(apache, folder)
        try:
            with running_stage(request, folder, proxy) as stage:
                yield stage
        finally:
            proxy.process.stop()


def test_what_the_scenarios_do_not_call_is_served_too(stage: Stage) -> None:
    anyio.run(_other_calls, stage.broker)


async def _other_calls(proxy: Proxy) -> None:
    names = {"group": named("by-hand"), "topic": named("by-hand")}
    proxy.make_group("by-hand", consumeMessageOrderly=True)
    async with grpc.aio.insecure_channel(proxy.endpoint) as channel:
        client = Client(channel, {"x-mq-client-id": "by-hand@1"})
        await warm_up(client)
        sent = [await client.send(body, "by-hand", **IN_ORDER) for body in (b"one", b"two")]
        async with client.telemetry(consumer_settings("by-hand", "by-hand")) as stream:
            settings = (await stream.read()).settings
            beat = await client.call("Heartbeat", group=names["group"], client_type=ClientType.PUSH_CONSUMER)
            first = (await receive_all(client, 1))[0]
            system = first.system_properties
            buried = await client.call(
                "ForwardMessageToDeadLetterQueue", receipt_handle=system.receipt_handle, message_id=system.message_id,
                delivery_attempt=1, max_delivery_attempts=1, **names,
            )  # fmt: skip
            second = (await receive_all(client, 1))[0]
            changed = await client.change(second, 10, "by-hand", "by-hand")
            second.system_properties.receipt_handle = changed.receipt_handle
            acked = await client.ack(second, "by-hand", "by-hand")
            forged = attrs.evolve(client, metadata={"x-mq-client-id": "forger@1"})
            second.system_properties.receipt_handle = changed.receipt_handle[:-1] + "x"
            refused = await forged.ack(second, "by-hand", "by-hand")
            left = await client.call("NotifyClientTermination", group=names["group"])

    codes = [one.status.code for one in (*sent, beat, buried, changed, left)]
    assert codes == [Code.OK] * len(codes)
    assert settings.subscription.fifo
    assert (first.body, second.body) == (b"one", b"two")
    assert (acked.code, refused.code) == (Code.OK, Code.INVALID_RECEIPT_HANDLE)
    assert scenarios.dead_letters(proxy.namesrv, "by-hand") == [b"one"]


async def warm_up(client: Client) -> None:
    """Send until an answer comes in time: a virtual machine that has just begun is slow on a busy machine."""
    with anyio.fail_after(PATIENCE):
        while (await client.call("SendMessage", messages=[make_message(b"x", "by-hand-0")])).status.code != Code.OK:  # noqa: ASYNC110
            await anyio.sleep(0.5)


async def receive_all(client: Client, wanted: int) -> list[Any]:
    return await client.receive_all(wanted, topic="by-hand", group="by-hand", count=1)


test_a_thousand_messages_reach_a_simple_and_a_push_consumer = beside(scenarios.many, CLIENTS)
test_messages_of_a_group_come_in_order_and_sql_chooses = beside(scenarios.order_and_sql, CLIENTS)
test_delays_recalls_and_transactions = beside(scenarios.delays_and_transactions, CLIENTS)
test_another_producer_is_asked_about_what_a_killed_one_left_open = beside(scenarios.orphans, CLIENTS)
test_what_fails_is_tried_again_and_becomes_a_dead_letter = beside(scenarios.poison, CLIENTS)
