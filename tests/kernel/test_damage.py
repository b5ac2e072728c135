"""Records that were changed after they were written: never handed out where the broker looks, and in nobody's way."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import anyio.to_thread
import pytest

from tests.kernel.pulling import pull
from tests.plugins.peer import served
from tests.spoiling import BODY_LENGTH, SIZE, spoil
from verniermq.cli.repair import repair_store
from verniermq.kernel import RequestCode, ResponseCode, decode_records
from verniermq.kernel.errors import StoreError
from verniermq.testing import small_configuration

pytestmark = pytest.mark.anyio

BODIES = [b"1000 EUR to A", b"2000 EUR to B", b"3000 EUR to C"]
PLACES = pytest.mark.parametrize(
    "at", [0, SIZE + 3, SIZE + 4, SIZE + 28 + 7, BODY_LENGTH + 2, len(BODIES[0])],
    ids=["body", "size", "magic", "log offset", "body length", "topic length"],
)  # fmt: skip


async def _store_spoiled(store: Path, spoiled: list[bytes], at: int = 0, bits: int = 8) -> None:
    """Three messages in a store that was closed, some of them damaged since."""
    async with served(store) as (_, client):
        for body in BODIES:
            await client.sent("orders", body, TAGS="paid", KEYS=body[:4].decode())
        await client.sent("others")  # a start looks at the last one
    for body in spoiled:
        spoil(store, body, at, bits)


@PLACES
async def test_a_pull_leaves_out_what_was_damaged_on_the_disk_and_goes_on_behind_it(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    await _store_spoiled(tmp_path, [BODIES[1]], at)

    async with served(tmp_path) as (_, client):
        answer = await pull(client)
        again = await pull(client)
        info = await client.ask_well(RequestCode.GET_BROKER_RUNTIME_INFO)

    assert [message.body for message in decode_records(answer.body)] == [BODIES[0], BODIES[2]]
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.SUCCESS, "3")
    assert answer.remark.startswith("the message at offset 1 is damaged: ")
    assert answer.body == again.body
    assert b'"damagedRecords":"1"' in info.body
    (said,) = [record for record in caplog.records if record.message.startswith("damaged record")]
    assert said.levelno == logging.ERROR
    assert f"file={tmp_path}/commitlog/{0:020} byte=" in said.message


async def test_a_pull_that_finds_only_damage_says_where_to_go_on(tmp_path: Path) -> None:
    await _store_spoiled(tmp_path, BODIES)

    async with served(tmp_path) as (_, client):
        answer = await pull(client)

    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")
    assert "damaged" in answer.remark


async def test_who_does_not_want_that_gets_what_is_there(tmp_path: Path) -> None:
    await _store_spoiled(tmp_path, [BODIES[1]])

    async with served(tmp_path, pull__verify_old=False) as (_, client):
        answer = await pull(client)

    assert [message.body for message in decode_records(answer.body)] == [BODIES[0], b":000 EUR to B", BODIES[2]]


async def test_what_was_written_since_the_start_is_not_compared(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await client.sent("orders", BODIES[0])
        spoil(tmp_path, BODIES[0], bits=8)
        answer = await pull(client)

        assert [message.body for message in decode_records(answer.body)] == [b"9000 EUR to A"]
        assert broker.store.damage.found == 0


@pytest.mark.parametrize("verify_old", [True, False])
async def test_a_filter_that_looks_into_a_damaged_record_does_not_stop_its_consumer(
    tmp_path: Path, verify_old: bool
) -> None:
    await _store_spoiled(tmp_path, [BODIES[1]], BODY_LENGTH, 0x10)

    async with served(tmp_path, pull__verify_old=verify_old) as (broker, client):
        answer = await pull(client, subscription="KEYS IS NOT NULL", expressionType="SQL92")

        assert [message.body for message in decode_records(answer.body)] == [BODIES[0], BODIES[2]]
        assert broker.store.damage.found == 1


async def test_a_message_that_is_asked_for_by_its_place_is_said_to_be_damaged(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        sent = await client.sent("orders", BODIES[0])
        offset = broker.store.end
        spoil(tmp_path, BODIES[0])
        damaged = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=0)
        back = await client.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="billing", delayLevel=0, originMsgId=sent["msgId"]
        )
        directly = await client.ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="billing", clientId="c", msgId=sent["msgId"]
        )
        absent = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
        inside = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=20)

        for answer in (damaged, back, directly):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "the message at commit-log offset 0 is damaged: its body's checksum is" in answer.remark
        for answer in (absent, inside):
            assert "there is no message at commit-log offset" in answer.remark
        assert broker.store.damage.found == 1


async def test_a_damaged_name_of_a_topic_is_a_damaged_record(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        for body in BODIES:
            await client.sent("orders", body)
    log = min((tmp_path / "commitlog").iterdir())
    content = bytearray(log.read_bytes())
    content[content.index(BODIES[1]) + len(BODIES[1]) + 3] = 8  # behind the length of the name
    log.write_bytes(content)
    (tmp_path / "abort").touch()
    shutil.rmtree(tmp_path / "consumequeue")

    with pytest.raises(StoreError, match="its topic has bytes that no topic's name has"):
        async with served(tmp_path):
            pass
    await anyio.to_thread.run_sync(repair_store, small_configuration(tmp_path).store)
    async with served(tmp_path) as (broker, client):
        assert BODIES[0] in await client.bodies("orders")
        assert {topic.name for topic in broker.topics if topic.name.startswith("or")} == {"orders"}


async def test_a_table_that_holds_something_else_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable": {"orders@readers": {"x": 1}}}')

    with pytest.raises(StoreError, match=r"Offset\.json holds what cannot be used: .*; mend the file, or move it away"):
        async with served(tmp_path):
            pass
