"""Records as hypothesis makes them, and what a table of them must say according to the kernel's own decoder."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from verniermq.kernel import StoredMessage, decode_records, java_hash, unpack_host
from verniermq.kernel.commitlog.record import pack_record, topic_field

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.one_of(
    st.sampled_from([bytes((10, 0, 0, 5, 0, 0, 0x2A, 0x9F)), bytes((127, 0, 0, 1, 0, 0, 0, 0))]),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=20, max_size=20),
)
NAMES = st.one_of(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a", "TAG", "TAGSX", "UNIQ_KEX", "KEYS\x00"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PAIRS = st.tuples(NAMES, VALUES).map(lambda pair: f"{pair[0]}\x01{pair[1]}\x02")
ODD_PIECES = st.sampled_from(["\x01", "\x02", "a\x02", "a\x01", "\x01b\x02", "a\x01b\x01c\x02", "TAGS\x01\x02"])
TEXTS = st.one_of(
    st.lists(PAIRS, max_size=8).map("".join),
    st.lists(PAIRS, max_size=8).map("".join).map(lambda text: text.removesuffix("\x02")),
    st.lists(st.one_of(PAIRS, ODD_PIECES), max_size=8).map("".join),
)
TOPICS = st.one_of(st.sampled_from(["orders", "%DLQ%billing"]), st.text("abcé", min_size=1, max_size=200))


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One record, of either version, with any hosts, and properties that need not be well-formed."""
    magic, topic = topic_field(draw(TOPICS))
    return pack_record(
        magic,
        topic,
        draw(st.binary(max_size=60)),
        draw(TEXTS).encode(),
        queue_id=draw(INT32),
        queue_offset=draw(INT64),
        commit_log_offset=draw(INT64),
        store_timestamp=draw(INT64),
        store_host=draw(HOSTS),
        flag=draw(INT32),
        sys_flag=draw(INT32),
        born_timestamp=draw(st.one_of(INT64, st.integers(0, 4_000_000_000_000))),
        born_host=draw(HOSTS),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
    )


@st.composite
def records_alike(draw: st.DrawFn) -> list[bytes]:
    """Records as one producer makes them: the same names in the same order, but for one that differs perhaps."""
    names = draw(st.lists(st.sampled_from(["TAGS", "KEYS", "WAIT", "wait", "UNIQ_KEY", "é"]), max_size=5))
    topic, odd_topic = draw(TOPICS), draw(TOPICS)
    others = draw(st.permutations(names))
    odd = draw(st.integers(-1, 5))
    values = st.text("abc\x01", min_size=draw(st.integers(0, 1)), max_size=4)
    made = []
    for number in range(5):
        magic, field = topic_field(odd_topic if number == odd and draw(st.booleans()) else topic)
        text = "".join(f"{name}\x01{draw(values)}\x02" for name in (others if number == odd else names))
        made.append(
            pack_record(
                magic, field, b"", text.encode(), queue_id=0, queue_offset=number, commit_log_offset=number,
                store_timestamp=0, store_host=bytes(8), flag=0, sys_flag=0, born_timestamp=0,
                born_host=bytes((number == odd, *range(7))), reconsume_times=0, prepared_transaction_offset=0,
            )
        )  # fmt: skip
    return made


def entry(record: bytes, tags_code: int) -> bytes:
    """What the consume queue keeps of a record."""
    return struct.pack(">qiq", int.from_bytes(record[28:36], "big", signed=True), len(record), tags_code)


def rows(chunk: bytes) -> list[dict[str, Any]]:
    """The rows that a table of these records must have."""
    return [_row(message) for message in decode_records(chunk)]


def _row(message: StoredMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "size": message.size,
        "tags": message.tags,
        "tagsCode": java_hash(message.tags) if message.tags else 0,
        "keys": message.properties.get("KEYS"),
        "uniqueKey": message.unique_key,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": _time(message.born_timestamp),
        "storeTimestamp": _time(message.store_timestamp),
        "bornHost": unpack_host(message.born_host),
        "storeHost": unpack_host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
        "body": message.body,
    }


def _time(milliseconds: int) -> datetime | None:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
