"""Fast paths beside their plain twins: what each takes of the processor, in turns in one process.

``python bench/fastpaths.py`` prints a line for each: the twin's time, the fast one's, and the gain. Both do the same
work on the same input, a send of 128 bytes with a unique key and tags; the tests that ``docs/architecture.md`` names
prove that they give the same. The best of many short spans counts, by the processor's time of this thread. Where a call
works on many messages, the figures are of one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click

from verniermq.client.encoder import EncodedMessage
from verniermq.client.pipeline import RequestPipeline
from verniermq.client.template import SendTemplate, header_parts
from verniermq.contrib.arrow.decode import decode_columns
from verniermq.kernel import (
    Command,
    MessageQueue,
    RequestCode,
    StoredMessage,
    decode_records,
    encode_record,
    java_hash,
    pack_host,
    parse_properties,
)
from verniermq.kernel.clock import SystemClock
from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.handlers.sendanswer import send_answer
from verniermq.kernel.remoting import binary_header
from verniermq.kernel.remoting.frame import FrameDecoder
from verniermq.kernel.requests import send as sends
from verniermq.plugins.filter.sql import javavalues
from verniermq.plugins.query.index import Index
from verniermq.plugins.query.indexfile import IndexFile
from verniermq.plugins.query.keys import key_hash

SPANS = 60
CALLS = 2_000

KEY = "AC11000100002A139A5500000001F3B2"
TEXT = f"UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02TAGS\x01paid\x02"
EXT = {
    "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700000000000", "h": "0",
    "i": TEXT, "j": "0", "k": "false", "m": "false",
}  # fmt: skip
BODY = bytes(128)
HOST = pack_host("127.0.0.1", 10911)
TOGETHER: Final = 64
"""Messages of a case that is about many."""
MANY: Final = 2_000
"""Records of a chunk."""

Call = Callable[[], Any]


def cases_of_the_index(folder: Path) -> dict[str, tuple[Call, Call]]:
    """One message after the other, as every turn of the loop with a single send has it, and many at once."""
    index = Index(folder / "index", slots=5_000_000, entries=20_000_000, now_ms=SystemClock().now_ms)
    born = 1_700_000_000_000
    keyed = [(4096 + 300 * n, n, {"UNIQ_KEY": f"{KEY[:-4]}{n:04X}"}) for n in range(TOGETHER)]
    events = [
        DispatchEvent(place, 300, 3, n, born, HOST, "orders", 0, 0, 0, properties, born, len(BODY), 0)
        for place, n, properties in keyed
    ]
    file = IndexFile(folder / "20260301093000123", 5_000_000, 20_000_000, create=True)
    keys = [(java_hash(properties["UNIQ_KEY"]) & 0x7FFFFFFF, place, born) for place, _, properties in keyed]

    def index_each() -> None:
        index.done = 0
        for event in events:
            index.add([event])

    def index_all() -> None:
        index.done = 0
        index.add(events)

    return {
        "host/plugin.py @gathered": (index_each, index_all),
        "query/indexfile.py add": (lambda: [file.add([key]) for key in keys], lambda: file.add(keys)),
    }


def case_of_answers() -> tuple[Call, Call]:
    """The answers to sends: through the decoder of connections, and taken out before it."""
    connection: Any = SimpleNamespace(on_close=[], peer_address="", send=lambda frame: None)
    pipeline = RequestPipeline(connection)
    sent = Command.request(RequestCode.SEND_MESSAGE_V2, {})
    awaited: Any = SimpleNamespace(answered=lambda header: None, deadline=float("inf"))

    def answers(first: int) -> bytes:
        frames = []
        for n in range(TOGETHER):
            sent.opaque = first + n
            frames.append(send_answer(sent, f"7F00000100002A9F{n:016X}", 3, n, KEY).frame)
        return b"".join(frames)

    data = answers(1)

    def plainly() -> None:
        waiting = dict.fromkeys(range(1, 1 + TOGETHER), awaited)
        for command in FrameDecoder().feed(data):
            waiting.pop(command.opaque).answered(command.ext)

    def sifted() -> None:
        for opaque in range(1, 1 + TOGETHER):
            pipeline.begin(opaque, b"", awaited)
        pipeline.sift(data)

    return plainly, sifted


def case_of_columns() -> tuple[Call, Call]:
    """Records as objects, one by one, and as columns."""
    stored = StoredMessage(
        topic="orders", queue_id=3, queue_offset=1, commit_log_offset=4096, size=0, body=BODY,
        properties=parse_properties(TEXT), born_timestamp=1_700_000_000_000, store_timestamp=1_700_000_000_005,
        born_host=HOST, store_host=HOST,
    )  # fmt: skip
    chunk = encode_record(stored) * MANY
    return lambda: list(decode_records(chunk)), lambda: decode_columns(chunk)


def cases_of_many(folder: Path) -> dict[str, tuple[Call, Call, int]]:
    """The same of cases that work on many messages, with their number."""
    return {
        **{name: (*pair, TOGETHER) for name, pair in cases_of_the_index(folder).items()},
        "client/pipeline.py": (*case_of_answers(), TOGETHER),
        "contrib/arrow/decode.py": (*case_of_columns(), MANY),
    }


def cases() -> dict[str, tuple[Call, Call]]:
    """Name → the plain twin, the fast path."""
    sent = Command.request(RequestCode.SEND_MESSAGE_V2, dict(EXT), BODY)
    binary = binary_header.encode_binary_header(310, 7, 0, EXT, "", "JAVA", 475)
    entries = binary[21:]
    entry_text = entries.decode("latin-1")
    binary_header._walk_entries(entries, entry_text)  # it remembers the keys
    answer = {
        "msgId": "7F00000100002A9F0000000000001000", "queueId": "3", "queueOffset": "1234", "transactionId": KEY,
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    queue = MessageQueue("orders", "broker-a", 3)
    request = sends.SendMessage.decode(Command.request(RequestCode.SEND_MESSAGE_V2, dict(EXT)))
    encoded = EncodedMessage(RequestCode.SEND_MESSAGE_V2, request, BODY, KEY)
    template = SendTemplate(*header_parts({**EXT, "e": "3", "n": "broker-a"}))
    start = java_hash("orders#") & 0xFFFFFFFF
    # No key comes twice: what is remembered of one must not help the other.
    twins, keys = ((f"{KEY[:-6]}{n & 0xFFFFFF:06X}" for n in count()) for _ in range(2))

    return {
        "sql/javavalues.py integer": (lambda: javavalues.integer("+42"), lambda: javavalues.integer("42")),
        "sql/javavalues.py double": (lambda: javavalues.double("4.5f"), lambda: javavalues.double("4.5")),
        "sendanswer.py send_answer": (
            lambda: sent.reply(0, dict(answer)).encode(),
            lambda: send_answer(sent, answer["msgId"], 3, 1234, KEY).frame,
        ),
        "requests/send.py SMALL": (lambda: sends._read_slowly(sent), lambda: sends.read_send(sent)),
        "binary_header.py _split_entries": (
            lambda: binary_header._walk_entries(entries, entry_text),
            lambda: binary_header._split_entries(entry_text),
        ),
        "query/keys.py key_hash": (
            lambda: abs(java_hash(f"orders#{next(twins)}")),
            lambda: key_hash(start, next(keys)),
        ),
        "client/template.py": (
            lambda: encoded.command(queue).encode(),
            lambda: template.frame(1_700_000_000_000, 0, TEXT, 7, BODY),
        ),
    }


def best(call: Call, messages: int) -> float:
    """Microseconds of one call, or of one of its messages, in the best span."""
    calls = max(1, CALLS // messages)
    begun = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - begun) / calls / messages / 1000


@click.command()
@click.option("--spans", default=SPANS, help="How many spans of each; they take turns.")
def main(spans: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = {name: (*pair, 1) for name, pair in cases().items()} | cases_of_many(Path(folder))
        measured = {name: [1e9, 1e9] for name in made}
        for _ in range(spans):
            for name, (twin, fast, messages) in made.items():
                for side, call in enumerate((twin, fast)):
                    measured[name][side] = min(measured[name][side], best(call, messages))
    click.echo(f"{'fast path':<36}{'twin µs':>10}{'fast µs':>10}{'gain':>8}")
    for name, (before, after) in measured.items():
        click.echo(f"{name:<36}{before:>10.2f}{after:>10.2f}{1 - after / before:>8.0%}")


if __name__ == "__main__":
    main()
