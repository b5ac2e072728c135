"""A file of rows: Parquet, or JSON with one object in a line."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

FORMS: Final = {"parquet": "zstd.parquet", "jsonl": "jsonl"}
"""What a file's name ends with."""

ALL_DIFFERENT: Final = ("body", "uniqueKey", "keys", "queueOffset", "commitLogOffset")
"""Columns without a value that comes again. A dictionary of them is only work, a tenth of all that writing takes."""

GROUP_BYTES: Final = 64 << 20
"""Rows that are kept in memory and written together."""


class RowFile(Protocol):
    @property
    def size(self) -> int:
        """Bytes that are in the file so far, and about as many as it will get from rows that wait."""
        ...

    def write(self, rows: pa.RecordBatch) -> None: ...
    def close(self) -> int:
        """Have it on the disk; return how many rows it has."""
        ...

    def abort(self) -> None: ...


def open_rows(path: Path, schema: pa.Schema) -> RowFile:
    return ParquetRows(path, schema) if path.suffix == ".parquet" else JsonRows(path)


class ParquetRows:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        plain = set(ALL_DIFFERENT)
        repeating = [field.name for field in schema if field.name not in plain and not pa.types.is_nested(field.type)]
        self._file = path.open("wb")
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd", use_dictionary=repeating)
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._raw = 0
        """Bytes of rows in memory that were written."""
        self._rows = 0

    @property
    def size(self) -> int:
        written = self._file.tell()
        # What waits is not compressed yet; it will be as small as what was written, if anything was.
        return written + (self._bytes * written // self._raw if self._raw else self._bytes)

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._raw += self._bytes
        self._waiting, self._bytes = [], 0
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> int:
        if self._waiting:
            self._write_group()
        self._writer.close()
        _sync(self._file)
        return self._rows

    def abort(self) -> None:
        try:
            self._writer.close()
        except OSError:
            pass  # the file is thrown away, and why it could not be written was told already
        self._file.close()


class JsonRows:
    """Timestamps are ISO 8601; a body that is no UTF-8 becomes ``bodyBase64``."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._rows = 0

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist(maps_as_pydicts="lossy"):
            self._file.write(orjson.dumps(_with_text(row), option=orjson.OPT_APPEND_NEWLINE, default=str))
        self._rows += rows.num_rows

    def close(self) -> int:
        _sync(self._file)
        return self._rows

    def abort(self) -> None:
        self._file.close()


def _with_text(row: dict[str, Any]) -> dict[str, Any]:
    """The body as a text, if it is one."""
    if isinstance(body := row.get("body"), bytes):
        try:
            row["body"] = body.decode()
        except UnicodeDecodeError:
            del row["body"]
            row["bodyBase64"] = base64.b64encode(body).decode()
    return row


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
