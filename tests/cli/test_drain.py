"""``verniermq broker drain``: producers go elsewhere, consumers are served, nothing is lost."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner, Result

from tests.client.place import PATIENCE
from verniermq.cli import main
from verniermq.client import Admin, Message, Producer, PullConsumer, PullStatus
from verniermq.client.errors import NotWritable
from verniermq.kernel import Command, RequestCode, ResponseCode, connect
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio


async def run(*arguments: str) -> Result:
    return await anyio.to_thread.run_sync(lambda: CliRunner().invoke(main, list(arguments)))


async def status(address: str) -> int:
    def ask() -> int:
        try:
            with urllib.request.urlopen(f"http://{address}/readyz", timeout=PATIENCE) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    return await anyio.to_thread.run_sync(ask)


async def count(namesrv: str, topic: str) -> dict[bytes, int]:
    """How often each body lies in a topic."""
    found: dict[bytes, int] = {}
    async with PullConsumer(namesrv=namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset = await consumer.min_offset(queue)
            while (result := await consumer.pull(queue, offset)).status is not PullStatus.NO_NEW_MESSAGE:
                offset = result.next_offset
                for message in result.messages:
                    found[message.body] = found.get(message.body, 0) + 1
    return found


async def send_directly(address: str) -> Command:
    """The answer to a send of a producer that does not know yet."""
    ext = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    connection = await connect(address)
    answer = await connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, ext, b"x"), PATIENCE)
    connection.close()
    return answer


async def test_a_drained_broker_refuses_sends_serves_pulls_and_is_not_ready() -> None:
    async with running_broker(plugins__enable=["default", "http"], plugins__http__listen="127.0.0.1:0") as broker:
        http = broker.host.active["http"].instance.address_of("/readyz")
        namesrv = broker.name_servers[0]
        drain = ("broker", "drain", "broker-a", "--namesrv", namesrv)
        async with Producer("senders", namesrv=namesrv, retries=0) as producer:
            await producer.send(Message("orders", b"before"))
            asked, planned = await run(*drain), await run(*drain, "--dry-run")
            before = await status(http)
            drained = await run(*drain, "--quiet", "100ms", "--yes", "--json")
            with pytest.raises(NotWritable):
                await producer.send(Message("orders", b"refused"))
            refused = await send_directly(broker.address)
            during = await status(http)
            kept = await count(namesrv, "orders")
            resumed = await run(*drain, "--resume")
            after = await status(http)
        async with Producer("senders", namesrv=namesrv) as producer:
            await producer.send(Message("orders", b"after"))

    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "told to take no messages any more" in refused.remark
    assert asked.exit_code == 2
    assert "NO OTHER BROKER takes messages" in planned.output
    assert drained.exit_code == 0, drained.output
    result: dict[str, Any] = json.loads(drained.stdout)
    assert (result["is_quiet"], result["is_synced"]) == (True, True)
    assert (before, during, after, resumed.exit_code) == (200, 503, 200, 0)
    assert kept == {b"before": 1}


async def test_no_send_fails_while_a_broker_is_drained() -> None:
    """The producer asks for routes often; what it sends until it knows is taken, and goes to the other one then."""
    async with (
        running_broker(broker__name="first") as first,
        running_broker(broker__name="second", broker__namesrv=first.name_servers) as second,
    ):
        namesrv = first.name_servers[0]
        async with Admin(namesrv=namesrv) as admin:
            with anyio.fail_after(PATIENCE):
                while len(await admin.brokers()) < 2:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            await admin.create_topic("orders", queues=2)
        sent: list[bytes] = []
        stopped = anyio.Event()

        async def send() -> None:
            options = {"route_interval": 0.2, "send_timeout": PATIENCE}
            async with Producer("senders", namesrv=namesrv, retries=0, **options) as producer:
                while not stopped.is_set():
                    body = str(len(sent)).encode()
                    await producer.send(Message("orders", body))
                    sent.append(body)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            arguments = ("--namesrv", namesrv, "--quiet", "2s", "--timeout", "60s", "--yes", "--json")
            drained = await run("broker", "drain", "second", *arguments)
            already = len(sent)
            with anyio.fail_after(PATIENCE):
                while len(sent) < already + 10:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            stopped.set()
        refused = second.store.refusals
        found = await count(namesrv, "orders")

    assert drained.exit_code == 0, drained.output
    assert json.loads(drained.stdout)["is_quiet"] is True
    assert "brokerPermission" in refused
    assert found == dict.fromkeys(sent, 1)


async def test_an_unknown_broker_is_said() -> None:
    async with running_broker() as broker:
        wrong = await run("broker", "drain", "nobody", "--namesrv", broker.name_servers[0], "--yes")

    assert wrong.exit_code == 2
    assert "nobody" in wrong.stderr
