"""Makes the store that ``test_upgrade.py`` opens, with the broker that the Python path leads to.

    PYTHONPATH=<a folder with that version's packages> python tests/upgrade/make_store.py 0.1.0

It has something of everything that a broker keeps: plain messages with tags and keys, committed offsets, a group,
delays by level and by time, an open transaction and one that was committed, a popped message, a dead letter.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import anyio
import orjson

from verniermq.kernel import Command, Connection, RequestCode, connect, decode_records, format_properties

try:
    from verniermq.testing import ManualClock, running_broker
except ImportError:
    from verniermq.kernel import ManualClock
    from verniermq.kernel.testing import running_broker

START = 1_700_000_000.0
SETTINGS: dict[str, Any] = {
    "store__segment_size": "64KiB", "store__max_message_size": "16KiB", "store__queue_entries": 64,
    "plugins__schedule__timer_file_size": "4KiB", "topics__default_queues": 2,
    "plugins__query__slots": 64, "plugins__query__entries": 256,
}  # fmt: skip


async def ask(connection: Connection, code: RequestCode, body: bytes = b"", **fields: object) -> Command:
    answer = await connection.request(Command.request(code, {k: str(v) for k, v in fields.items()}, body), 30)
    assert answer.code in (0, 19, 210), f"{code.name}: {answer.code} {answer.remark}"
    return answer


async def send(
    connection: Connection, topic: str, body: bytes, queue: int = 0, flag: int = 0, **more: object
) -> Command:
    text = format_properties({name: str(value) for name, value in more.items()})
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": flag, "g": int(START * 1000), "h": 0}
    return await ask(connection, RequestCode.SEND_MESSAGE_V2, body, **fields, i=text, j=0)


async def fill(connection: Connection, clock: ManualClock) -> None:
    for number in range(200):  # over several segments
        await send(connection, "orders", b"%03d" % number + b"." * 600, number % 2, TAGS="paid", KEYS=f"k{number}")
    for queue in range(2):
        await ask(
            connection, RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", topic="orders", queueId=queue,
            commitOffset=40 + queue,
        )  # fmt: skip
    await send(connection, "later", b"by level", DELAY=18)
    await send(connection, "later", b"at a time", TIMER_DELIVER_MS=int(START * 1000) + 3_600_250)
    half = {"TRAN_MSG": "true", "PGROUP": "P"}
    await send(connection, "deals", b"open", 0, 4, UNIQ_KEY="open", **half)
    committed = await send(connection, "deals", b"committed", 0, 4, UNIQ_KEY="committed", **half)
    offset = int(committed.ext["msgId"][16:], 16)
    ending = Command.request(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "P", "tranStateTableOffset": committed.ext["queueOffset"], "commitLogOffset": str(offset),
            "commitOrRollback": "8", "msgId": "committed",
        },
    )  # fmt: skip
    assert (await connection.request(ending, 30)).code == 0
    for body in (b"popped", b"popped and acknowledged"):
        await send(connection, "pops", body)
        answer = await ask(
            connection, RequestCode.POP_MESSAGE, consumerGroup="poppers", topic="pops", queueId=0, maxMsgNums=1,
            invisibleTime=1_800_000, pollTime=0, bornTime=0, initMode=0,
        )  # fmt: skip
    (message,) = decode_records(answer.body)
    start = answer.ext["startOffsetInfo"].split(" ")[2]
    words = [start, *(answer.ext[name] for name in ("popTime", "invisibleTime", "reviveQid")), "0", "broker-a", "0"]
    await ask(
        connection, RequestCode.ACK_MESSAGE, consumerGroup="poppers", topic="pops", queueId=0,
        extraInfo=" ".join([*words, str(message.queue_offset)]), offset=message.queue_offset,
    )  # fmt: skip
    await send(connection, "failing", b"dead")
    pulled = await ask(
        connection, RequestCode.PULL_MESSAGE, consumerGroup="failed", topic="failing", queueId=0, queueOffset=0,
        maxMsgNums=1, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
    )  # fmt: skip
    (dead,) = decode_records(pulled.body)
    await ask(
        connection, RequestCode.CONSUMER_SEND_MSG_BACK, offset=dead.commit_log_offset, group="failed", delayLevel=-1,
        originMsgId=dead.offset_message_id, originTopic="failing",
    )  # fmt: skip
    await ask(
        connection,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        orjson.dumps({"groupName": "readers", "retryMaxTimes": 7}),
    )
    await clock.advance(10)


async def make(store: Path) -> None:
    clock = ManualClock(START)
    async with running_broker(store, clock=clock, **SETTINGS) as broker:
        connection = await connect(broker.address)
        await fill(connection, clock)
        connection.close()
        await connection.wait_closed()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        anyio.run(make, store)
        target = Path(__file__).with_name(f"store-{sys.argv[1]}.tar.xz")
        with tarfile.open(target, "w:xz") as archive:
            archive.add(store, "store")
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
