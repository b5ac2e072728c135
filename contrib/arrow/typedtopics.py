"""What ``--typed`` says: which topics have typed bodies, and what becomes of those that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.values import FORMATS, TYPED_COLUMNS, ValueOptions, decoder_of

ERROR_COLUMNS: Final = (
    "queueId", "queueOffset", "commitLogOffset", "size", "uniqueKey", "bornTimestamp", "storeTimestamp",
    "reconsumeTimes", "corrupt", "body",
)  # fmt: skip


def parse_typed(given: Sequence[str], on_error: str) -> dict[str, ValueOptions]:
    """``orders=schema.ddl``, ``orders=msgpack:schema.ddl``, ``orders=orders.avsc``, ``orders=shop.desc#shop.Order``.

    With ``orders=http://registry:8081`` bodies are Avro with Confluent's header, and are read as the newest schema that
    the registry has now.

    Raises:
        BadOption: a text is something else, or a schema is none.
        RegistryFailed: a registry says no schema.
    """
    found = {}
    for text in given:
        topic, separator, rest = text.partition("=")
        form, colon, path = rest.partition(":")
        if not colon or form not in FORMATS:
            form, path = "", rest
        file, _, message = path.partition("#")
        if not separator or not topic or not file:
            raise BadOption("typed", text, "TOPIC=FILE, TOPIC=FORMAT:FILE or TOPIC=FILE#MESSAGE")
        mode = "FAILFAST" if on_error == "stop" else "PERMISSIVE"
        if file.startswith(("http://", "https://")):
            if form not in ("", "avro"):
                raise BadOption("typed", text, "a file: of a registry's schemas only Avro's can be taken")
            options = _of_registry(file.rstrip("/"), message or f"{topic}-value", mode)
        else:
            form = form or {".avsc": "avro", ".desc": "protobuf"}.get(Path(file).suffix, "json")
            try:
                schema = Path(file).read_bytes()
            except OSError as error:
                raise BadOption("typed", text, f"a file that can be read ({error.strerror})") from None
            options = ValueOptions(form, mode, schema, message)
        options.check(topic)
        decoder_of(options)
        found[topic] = options
    return found


def _of_registry(registry: str, subject: str, mode: str) -> ValueOptions:
    from verniermq.contrib.arrow.values.registry import newest_schema

    return ValueOptions("avro", mode, newest_schema(registry, subject).encode(), registry=registry, subject=subject)


@attrs.frozen
class SortedRows:
    """The rows of a batch that have a value, and those that have none."""

    good: pa.RecordBatch
    bad: pa.RecordBatch

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> SortedRows:
        fine = rows.column("corrupt").is_null()
        bad = rows.filter(pc.invert(fine)).select(list(ERROR_COLUMNS))
        return cls(rows.filter(fine).select(list(TYPED_COLUMNS)), bad)
