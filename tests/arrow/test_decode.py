"""Records become the same rows as the kernel's own decoder makes of them, and bad ones the same errors."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.arrow.records import entry, records, records_alike, rows
from verniermq.contrib.arrow.compression import BodyNotInflated
from verniermq.contrib.arrow.decode import decode_columns
from verniermq.contrib.arrow.schema import COLUMNS
from verniermq.kernel import CorruptRecord, StoredMessage, SysFlag, encode_record, pack_host


def made(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "orders", "queue_id": 1, "queue_offset": 7, "commit_log_offset": 4096, "size": 0, "body": b"hello",
        "properties": {"TAGS": "paid", "KEYS": "T1"}, "born_timestamp": 1_700_000_000_000,
        "store_timestamp": 1_700_000_000_005, "born_host": pack_host("10.0.0.5", 4711),
        "store_host": pack_host("127.0.0.1", 10911),
    }  # fmt: skip
    return encode_record(StoredMessage(**{**fields, **changes}))


def table(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.to_pylist()
    for row in found:
        if "properties" in row:
            pairs = row["properties"]
            row["properties"] = dict(pairs)
            assert len(row["properties"]) == len(pairs), "a map has a key twice"
    return found


def outcome(decode: Callable[[], object]) -> object:
    """What it returns, or the text of its error."""
    try:
        return decode()
    except CorruptRecord as error:
        return str(error)


@settings(deadline=None)
@given(st.lists(records(), max_size=12))
@example([])
def test_rows_are_what_the_kernel_decodes(made_records: list[bytes]) -> None:
    chunk = b"".join(made_records)

    batch = decode_columns(chunk)

    assert batch.schema.names == list(COLUMNS)
    assert table(batch) == rows(chunk)


@settings(deadline=None)
@given(records_alike(), st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
def test_records_that_are_much_alike_are_rows_of_their_own(made_records: list[bytes], columns: list[str]) -> None:
    chunk = b"".join(made_records)

    assert table(decode_columns(chunk)) == rows(chunk)
    assert table(decode_columns(chunk, columns)) == [{name: row[name] for name in columns} for row in rows(chunk)]


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=8), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=8, max_size=8))
def test_the_tags_code_is_the_one_that_the_queue_has(made_records: list[bytes], codes: list[int]) -> None:
    chunk = b"".join(made_records)
    entries = b"".join([entry(record, code) for record, code in zip(made_records, codes, strict=False)])

    batch = decode_columns(chunk + entries, record_bytes=len(chunk))

    expected = [{**row, "tagsCode": code} for row, code in zip(rows(chunk), codes, strict=False)]
    assert table(batch) == expected


@settings(deadline=None)
@given(st.lists(records(), max_size=8), st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
def test_columns_alone_are_as_in_the_whole_table(made_records: list[bytes], columns: list[str]) -> None:
    chunk = b"".join(made_records)

    batch = decode_columns(chunk, columns)

    assert batch.schema.names == columns
    assert table(batch) == [{name: row[name] for name in columns} for row in rows(chunk)]


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_damaged_bytes_are_the_same_error_or_the_same_rows(made_records: list[bytes], data: st.DataObject) -> None:
    chunk = bytearray(b"".join(made_records))
    for _ in range(data.draw(st.integers(1, 4))):
        chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(chunk[: data.draw(st.integers(1, len(chunk)))])

    assert outcome(lambda: table(decode_columns(damaged))) == outcome(lambda: rows(damaged))


def test_many_names_are_compared_too() -> None:
    text = {f"name-{number}": "x" for number in range(100)}
    chunk = made(properties=text) + made(properties={**text, "TAGS": "b"}) * 2

    assert table(decode_columns(chunk)) == rows(chunk)


def test_entries_of_other_records_are_refused() -> None:
    record = made()

    with pytest.raises(CorruptRecord, match="entries tell of"):
        decode_columns(record + entry(record + b"more", 0), record_bytes=len(record))


def test_a_checksum_that_does_not_fit_is_told_when_asked_for() -> None:
    damaged = bytearray(made(body=b"hello"))
    damaged[damaged.index(b"hello")] = ord("j")

    assert decode_columns(bytes(damaged)).column("body").to_pylist() == [b"jello"]
    with pytest.raises(CorruptRecord, match=r"4096.*checksum"):
        decode_columns(bytes(damaged), check_crc=True)
    assert decode_columns(made(), check_crc=True).num_rows == 1


@pytest.mark.parametrize(
    ("flag", "compress"),
    [
        (SysFlag.COMPRESSED, zlib.compress),
        (SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB, zlib.compress),
        (SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD, lambda body: pa.compress(body, "zstd", asbytes=True)),
        (SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4, lambda body: pa.compress(body, "lz4", asbytes=True)),
    ],
)
def test_compressed_bodies_are_made_plain_when_asked_for(flag: int, compress: Any) -> None:
    plain = b"one order after the other " * 40
    chunk = made(body=b"plain") + made(body=compress(plain), sys_flag=flag)

    assert decode_columns(chunk, ["body"], decompress=True).column("body").to_pylist() == [b"plain", plain]
    assert decode_columns(chunk, ["body"]).column("body").to_pylist() == [b"plain", compress(plain)]


def test_a_body_that_only_claims_to_be_compressed_is_told() -> None:
    with pytest.raises(BodyNotInflated, match=r"zlib.*decompress=false"):
        decode_columns(made(sys_flag=SysFlag.COMPRESSED), decompress=True)


@pytest.mark.parametrize(
    ("flag", "compress"),
    [
        (SysFlag.COMPRESSION_ZLIB, zlib.compress),
        (SysFlag.COMPRESSION_ZSTD, lambda body: pa.compress(body, "zstd", asbytes=True)),
        (SysFlag.COMPRESSION_LZ4, lambda body: pa.compress(body, "lz4", asbytes=True)),
    ],
)
def test_a_body_is_inflated_up_to_its_limit_and_no_further(flag: int, compress: Any) -> None:
    limit = 1 << 20
    exact = made(body=compress(bytes(limit)), sys_flag=flag | SysFlag.COMPRESSED)
    bomb = made(body=compress(bytes(24 << 20)), sys_flag=flag | SysFlag.COMPRESSED)

    whole = decode_columns(exact, ["body"], decompress=True, max_body_size=limit)
    assert whole.column("body").to_pylist() == [bytes(limit)]
    tracemalloc.start()
    try:
        with pytest.raises(BodyNotInflated, match=r"commit-log offset 4096 .* more than the 1048576 .* maxBodySize"):
            decode_columns(bomb, ["body"], decompress=True, max_body_size=limit)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 4 * limit + len(bomb)
