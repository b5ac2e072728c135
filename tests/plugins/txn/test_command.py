"""``verniermq txn``, run against a real broker."""

from __future__ import annotations

import json

import anyio.to_thread
import pytest
from click.testing import CliRunner, Result

from tests.plugins.txn.peers import peer
from verniermq.cli import main
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio


async def run(*arguments: str, command: str = "txn") -> Result:
    return await anyio.to_thread.run_sync(lambda: CliRunner().invoke(main, [command, *arguments]))


async def test_a_transaction_that_was_given_up_is_opened_again_as_the_log_advises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, plugins__txn__check_max=1) as broker, peer(broker.address) as producer:
        await producer.join(producers=("P",))
        await producer.send_half("orders", b"stuck")
        await clock.advance(60)
        (line,) = [record.getMessage() for record in caplog.records if "gave up" in record.message]
        await producer.checked()

        tail = ("TRANS_CHECK_MAX_TIME_TOPIC", "--from-start", "--no-wait", "--json")
        shown = await run(*tail, "--namesrv", broker.name_servers[0], command="tail")
        assert json.loads(shown.output)["offset_id"] == line.split("verniermq txn resume ")[1].split()[0]
        resumed = await run(*line.split("verniermq txn ")[1].split()[:2], "--json")
        assert resumed.exit_code == 0, resumed.output
        told = {"id": json.loads(shown.output)["offset_id"], "broker": broker.address, "open": True}
        assert json.loads(resumed.output) == told
        await clock.advance(30)
        _, message = await producer.checked()
        assert message.body == b"stuck"


async def test_an_id_that_is_none_is_refused() -> None:
    async with running_broker() as broker:
        wrong = await run("resume", "x")
        unknown = await run("resume", "7F00000100002A9F0000000000001000", "--broker", broker.address)

    assert "no offset message id" in wrong.output
    assert wrong.exit_code == 2
    assert unknown.exit_code != 0
    assert "TRANS_CHECK_MAX_TIME_TOPIC" in f"{unknown.output}{unknown.exception}"
