"""Queries over a real socket: by key and time, by unique key, by place; after stops, crashes and deletions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.kernel.commitlog.disk import Disk
from tests.killed import copy_as_killed
from tests.plugins.peer import Peer, peer, served
from verniermq.kernel import (
    Command,
    RequestCode,
    ResponseCode,
    StoredMessage,
    decode_records,
    parse_offset_message_id,
)
from verniermq.plugins.query import Plugin
from verniermq.testing import ManualClock, broker_process

pytestmark = pytest.mark.anyio

SMALL: dict[str, Any] = {"plugins__query__slots": 100, "plugins__query__entries": 50}
LATEST = 2**63 - 1


async def ask(client: Peer, topic: str, key: str, begin: int = 0, end: int = LATEST, most: int = 64) -> Command:
    return await client.ask(
        RequestCode.QUERY_MESSAGE, topic=topic, key=key, maxNum=most, beginTimestamp=begin, endTimestamp=end
    )


async def query(client: Peer, topic: str, key: str, **bounds: int) -> list[StoredMessage]:
    answer = await ask(client, topic, key, **bounds)
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND), answer.remark
    return decode_records(answer.body)


async def bodies(client: Peer, topic: str, key: str, **bounds: int) -> list[bytes]:
    return [message.body for message in await query(client, topic, key, **bounds)]


async def test_a_message_is_found_by_each_of_its_keys_and_by_its_unique_key(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.sent("orders", b"one", KEYS="a b", UNIQ_KEY="U1")
        await client.sent("orders", b"two", KEYS="b", UNIQ_KEY="U2", queue=3)
        await client.sent("other", b"three", KEYS="b")

        assert await bodies(client, "orders", "a") == [b"one"]
        assert await bodies(client, "orders", "b") == [b"one", b"two"]
        assert await bodies(client, "orders", "U2") == [b"two"]
        assert await bodies(client, "other", "b") == [b"three"]


async def test_nothing_found_is_said_with_the_key_and_how_far_the_index_is(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        sent = await client.sent("orders", KEYS="a")

        answer = await ask(client, "orders", "c")

        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert "'c'" in answer.remark
        assert int(answer.ext["indexLastUpdatePhyoffset"]) == parse_offset_message_id(sent["msgId"])[1]
        assert int(answer.ext["indexLastUpdateTimestamp"]) > 0


async def test_only_messages_of_the_asked_time_are_found_to_the_millisecond(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        times = []
        for number in range(10):
            await client.sent("orders", b"%d" % number, KEYS="k")
            times.append(clock.now_ms())
            await clock.advance(0.3)

        assert await bodies(client, "orders", "k", begin=times[3], end=times[6]) == [b"3", b"4", b"5", b"6"]
        assert await bodies(client, "orders", "k", begin=times[3] + 1, end=times[4] - 1) == []
        assert await bodies(client, "orders", "k", end=times[0]) == [b"0"]
        assert await bodies(client, "orders", "k", begin=times[9]) == [b"9"]


async def test_a_query_gets_the_newest_and_not_more_than_64(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        for number in range(70):
            await client.sent("orders", b"%d" % number, KEYS="k")

        assert await bodies(client, "orders", "k", most=3) == [b"67", b"68", b"69"]
        assert len(await bodies(client, "orders", "k", most=1000)) == 64


async def test_a_unique_key_query_asks_for_32_whatever_the_client_says(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        for number in range(40):
            await client.sent("orders", b"%d" % number, UNIQ_KEY="U")

        answer = await client.ask(
            RequestCode.QUERY_MESSAGE, topic="orders", key="U", maxNum=1, beginTimestamp=0, endTimestamp=LATEST,
            _UNIQUE_KEY_QUERY="true",
        )  # fmt: skip

        assert len(decode_records(answer.body)) == 32


async def test_an_answer_that_would_not_fit_a_frame_has_the_newest(tmp_path: Path) -> None:
    sizes = {"max_frame_size": "1MiB", "max_header_size": "64KiB"}
    small = {f"remoting__{name}": size for name, size in sizes.items()}
    async with served(tmp_path, store__max_message_size="512KiB", **small) as (_, client):
        for number in range(5):
            await client.sent("orders", b"%d" % number * 300_000, KEYS="large")

        assert [body[:1] for body in await bodies(client, "orders", "large")] == [b"2", b"3", b"4"]


async def test_keys_of_the_same_hash_are_told_apart(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.sent("orders", b"Aa", KEYS="Aa")
        await client.sent("orders", b"BB", KEYS="BB")  # Java's hash of both is 2112

        assert await bodies(client, "orders", "Aa") == [b"Aa"]


async def test_a_message_is_found_by_its_place(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        sent = await client.sent("orders", b"here", KEYS="a")
        offset = parse_offset_message_id(sent["msgId"])[1]

        answer = await client.ask_well(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
        missed = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset + 1)

        (message,) = decode_records(answer.body)
        assert message.body == b"here"
        assert message.offset_message_id == sent["msgId"]
        assert missed.code == ResponseCode.SYSTEM_ERROR
        assert f"offset {offset + 1}" in missed.remark


async def test_a_damaged_message_does_not_keep_those_behind_it_from_being_indexed(tmp_path: Path) -> None:
    async with served(tmp_path, **SMALL) as (_, client):
        sent = [await client.sent("orders", b"body-%d" % number, KEYS="k") for number in range(9)]
    shutil.rmtree(tmp_path / "index")
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(parse_offset_message_id(sent[3]["msgId"])[1])
        at = log.tell() + log.read(400).index(b"body-3")
        log.seek(at)
        log.write(b"BODY")

    async with served(tmp_path, **SMALL) as (_, client):
        found = await bodies(client, "orders", "k")

    assert found == [b"body-%d" % number for number in range(9) if number != 3]


async def test_the_index_is_as_it_was_after_a_restart_and_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path, **SMALL) as (_, client):
        for number in range(60):
            await client.sent("orders", b"%d" % number, KEYS="k")
    files = sorted(path.name for path in (tmp_path / "index").iterdir())
    async with served(tmp_path, **SMALL) as (_, client):
        await client.sent("orders", b"60", KEYS="k")

        assert len(files) == 3
        assert await bodies(client, "orders", "k") == [b"%d" % number for number in range(61)]


async def test_a_deleted_index_is_made_again_from_the_log(tmp_path: Path) -> None:
    async with served(tmp_path, **SMALL) as (_, client):
        for number in range(30):
            await client.sent("orders", b"%d" % number, KEYS="k")
    shutil.rmtree(tmp_path / "index")
    async with served(tmp_path, **SMALL) as (_, client):
        assert await bodies(client, "orders", "k") == [b"%d" % number for number in range(30)]


async def test_messages_stored_while_the_plugin_was_off_are_indexed_when_it_is_on_again(tmp_path: Path) -> None:
    async with served(tmp_path, **SMALL) as (_, client):
        await client.sent("orders", b"0", KEYS="k")
    async with served(tmp_path, plugins__disable=["query"]) as (_, client):
        await client.sent("orders", b"1", KEYS="k")
        refused = await ask(client, "orders", "k")
    async with served(tmp_path, **SMALL) as (_, client):
        assert "needs the plugin 'query'" in refused.remark
        assert await bodies(client, "orders", "k") == [b"0", b"1"]


async def test_every_acknowledged_message_is_found_after_a_kill(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store", "--set=plugins.query.sync_interval=50ms") as process:
        expected: list[bytes] = []
        for _ in range(3):
            async with peer(process.broker) as client:
                for _ in range(20):
                    expected.append(b"%d" % len(expected))
                    await client.sent("orders", expected[-1], KEYS="k")
            process.kill()
            process.start()
        async with peer(process.broker) as client:
            assert await bodies(client, "orders", "k") == expected


async def test_a_stop_before_the_index_was_opened_after_a_crash_loses_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "plugins__query__sync_interval": "1h"}
    async with served(tmp_path / "store", **settings) as (_, client):
        for number in range(20):
            await client.sent("orders", b"%d" % number, KEYS="k")
        copy_as_killed(tmp_path / "store", tmp_path / "crashed")
    with monkeypatch.context() as patch:
        patch.setattr(Plugin, "_run", lambda self: anyio.sleep_forever())  # the thread has not had its turn yet
        async with served(tmp_path / "crashed", **settings) as (_, client):
            await client.sent("orders", b"20", KEYS="k")
    async with served(tmp_path / "crashed", **settings) as (_, client):
        assert await bodies(client, "orders", "k") == [b"%d" % number for number in range(21)]


async def test_what_the_disk_refused_is_indexed_once_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "index").write_text("in the way")
    async with served(tmp_path, plugins__query__sync_interval="10ms", store__segment_size="5MiB") as (_, client):
        for number in range(3):
            await client.sent("orders", b"%d" % number * 3_000_000, KEYS="k")  # a segment for each
        missed = await bodies(client, "orders", "k")
        (tmp_path / "index").unlink()
        with anyio.fail_after(30):
            while not await bodies(client, "orders", "k"):  # noqa: ASYNC110 - there is nobody to tell us
                await anyio.sleep(0.01)
        await client.sent("orders", b"3", KEYS="k")
        found = await bodies(client, "orders", "k")

    assert missed == []
    assert [body[:1] for body in found] == [b"0", b"1", b"2", b"3"]
    assert "the disk refused the key index" in caplog.text


async def test_an_index_of_other_sizes_is_left_alone_and_queries_say_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, **SMALL) as (_, client):
        await client.sent("orders", KEYS="k")
    async with served(tmp_path, plugins__query__slots=7) as (_, client):
        sent = await client.sent("orders", b"still", KEYS="k")
        refused = await ask(client, "orders", "k")
        by_place = await client.ask_well(
            RequestCode.VIEW_MESSAGE_BY_ID, offset=parse_offset_message_id(sent["msgId"])[1]
        )

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "set slots and entries in [plugins.query]" in refused.remark
    assert decode_records(by_place.body)[0].body == b"still"
    assert "no message can be found by key this time" in caplog.text


async def test_a_search_fetches_what_is_on_the_disk_only_before_it_looks_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as (broker, client):
        await client.sent("orders", b"one", KEYS="a b")
        await client.sent("orders", b"two" * 100, KEYS="b")
        assert await bodies(client, "orders", "a") == [b"one"]
        disk = Disk(broker.store, monkeypatch)

        assert await bodies(client, "orders", "b") == [b"one", b"two" * 100]
        assert disk.fetched
        monkeypatch.undo()
