"""Fast paths that no other test compares with their plain twins; the table is in ``docs/architecture.md``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.commitlog.stores import abandon, open_store, pending
from tests.plugins.peer import peer
from verniermq.kernel import (
    PendingMessage,
    RequestCode,
    SysFlag,
    decode_record,
    encode_record,
    pack_host,
)
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

NAMES = st.text("abcXYZ", min_size=1, max_size=8)
HOSTS = st.sampled_from([pack_host("10.1.2.3", 10911), pack_host("2001:db8::5", 65535)])
MESSAGES = st.builds(
    PendingMessage,
    topic=st.sampled_from(["T", "topic-with-a-longer-name"]),
    queue_id=st.integers(0, 3),
    body=st.binary(min_size=1, max_size=60),
    properties=st.dictionaries(NAMES, st.text("äb 1", min_size=1, max_size=8), max_size=3),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, SysFlag.COMPRESSED, SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_COMMIT]),
    born_timestamp=st.integers(0, 2**62),
    born_host=HOSTS,
    reconsume_times=st.integers(0, 20),
    prepared_transaction_offset=st.integers(0, 2**62),
)


@given(MESSAGES, HOSTS)
@settings(max_examples=30)  # each opens a store
def test_an_appended_record_has_the_bytes_that_the_plain_encoder_writes(message: PendingMessage, host: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder), host=host)
        appended = store.append(message)
        record = store.read(appended.commit_log_offset, appended.size)
        store.close()

    assert record is not None
    stored = decode_record(record)
    assert encode_record(stored) == record
    for name in (
        "topic",
        "queue_id",
        "body",
        "flag",
        "born_timestamp",
        "reconsume_times",
        "prepared_transaction_offset",
    ):
        assert getattr(stored, name) == getattr(message, name), name
    assert (stored.properties, stored.store_host) == (message.properties, host)


def entries(folder: Path) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    store = open_store(folder)
    found = {(queue.topic, queue.queue_id): queue.entries(0, 100) for queue in store.queues()}
    abandon(store)
    return found


def test_queues_made_at_run_time_are_those_that_recovery_makes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(40):
        properties = {"TAGS": f"tag-{number % 3}"} if number % 4 else {}
        sys_flag = SysFlag.TRANSACTION_PREPARED if number % 7 == 0 else 0
        store.append(pending(f"T{number % 2}", number % 3, properties=properties, sys_flag=sys_flag))
        if number % 5 == 0:
            store.dispatch()
    store.close()

    made_at_run_time = entries(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "checkpoint").unlink()

    assert len(made_at_run_time) == 6
    assert entries(tmp_path) == made_at_run_time


async def test_numbers_that_are_looked_up_and_numbers_that_are_read_mean_the_same() -> None:
    usual = {
        "a": "p",
        "b": "orders",
        "c": "TBW102",
        "d": "4",
        "e": "1",
        "f": "1",
        "g": "1600000000000",
        "h": "7",
        "j": "3",
    }
    unusual = {**usual, "e": "+1", "f": "001", "g": "+1600000000000", "h": "0000000007", "j": "03"}
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        for fields in (usual, unusual):
            await client.ask_well(RequestCode.SEND_MESSAGE_V2, b"x", **fields)
        first, second = await client.pull("orders", queue=1)

    for name in ("topic", "queue_id", "sys_flag", "flag", "born_timestamp", "reconsume_times", "body"):
        assert getattr(first, name) == getattr(second, name), name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "TAGS\x01paid\x02",
        "UNIQ_KEY\x01K1\x02TAGS\x01paid",
        "UNIQ_KEY\x01K1\x02TAGS\x01paid\x02",
        "UNIQ_KEY\x01K1\x02MSG_REGION\x01r\x02",
    ],
)
async def test_the_text_that_the_broker_extends_says_what_the_properties_say(text: str) -> None:
    fields = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": text}
    async with running_broker(plugins__enable=[], broker__cluster="c1") as broker, peer(broker.address) as client:
        await client.ask_well(RequestCode.SEND_MESSAGE_V2, b"x", **fields)
        (message,) = await client.pull("orders")

    given_ones = dict(pair.split("\x01") for pair in text.split("\x02") if pair)
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "c1"}
    expected = {"UNIQ_KEY": message.properties["UNIQ_KEY"], **given_ones, **added}
    assert message.properties == expected
