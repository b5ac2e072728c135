"""Fast paths beside their plain twins: what each takes of the processor, in turns in one process.

``python bench/fastpaths.py`` prints a line for each: the twin's time, the fast one's, and the gain. Both do the same
work on the same input, a send of 128 bytes with a unique key and tags; the tests that ``docs/architecture.md`` names
prove that they give the same. The best of many short spans counts, by the processor's time of this thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import click

from verniermq.client.encoder import EncodedMessage
from verniermq.client.template import SendTemplate, header_parts
from verniermq.kernel import Command, MessageQueue, RequestCode, format_properties, java_hash
from verniermq.kernel.handlers.sendanswer import send_answer
from verniermq.kernel.remoting import binary_header
from verniermq.kernel.requests import send as sends
from verniermq.plugins.query.keys import key_hash

SPANS = 60
CALLS = 2_000

KEY = "AC11000100002A139A5500000001F3B2"
TEXT = f"UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02TAGS\x01paid\x02"
ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
ADDED_TEXT = "".join(f"{name}\x01{value}\x02" for name, value in ADDED.items())
EXT = {
    "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700000000000", "h": "0",
    "i": TEXT, "j": "0", "k": "false", "m": "false",
}  # fmt: skip
BODY = bytes(128)


def cases() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
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
    properties = dict(part.split("\x01") for part in TEXT.split("\x02") if part)
    queue = MessageQueue("orders", "broker-a", 3)
    request = sends.SendMessage.decode(Command.request(RequestCode.SEND_MESSAGE_V2, dict(EXT)))
    encoded = EncodedMessage(RequestCode.SEND_MESSAGE_V2, request, BODY, KEY)
    template = SendTemplate(*header_parts({**EXT, "e": "3", "n": "broker-a"}))
    start = java_hash("orders#") & 0xFFFFFFFF
    # No key comes twice: what is remembered of one must not help the other.
    twins, keys = ((f"{KEY[:-6]}{n & 0xFFFFFF:06X}" for n in count()) for _ in range(2))

    return {
        "sendanswer.py send_answer": (
            lambda: sent.reply(0, dict(answer)).encode(),
            lambda: send_answer(sent, answer["msgId"], 3, 1234, KEY).frame,
        ),
        "requests/send.py SMALL": (lambda: sends._read_slowly(sent), lambda: sends.read_send(sent)),
        "handlers/send.py _stamp": (
            lambda: format_properties({**properties, **ADDED}),
            lambda: (properties | ADDED, TEXT + ADDED_TEXT),
        ),
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


def best(call: Callable[[], Any]) -> float:
    """Microseconds of one call in the best span."""
    begun = time.thread_time_ns()
    for _ in range(CALLS):
        call()
    return (time.thread_time_ns() - begun) / CALLS / 1000


@click.command()
@click.option("--spans", default=SPANS, help="How many spans of each; they take turns.")
def main(spans: int) -> None:
    measured = {name: [1e9, 1e9] for name in cases()}
    made = cases()
    for _ in range(spans):
        for name, pair in made.items():
            for side, call in enumerate(pair):
                measured[name][side] = min(measured[name][side], best(call))
    click.echo(f"{'fast path':<36}{'twin µs':>10}{'fast µs':>10}{'gain':>8}")
    for name, (twin, fast) in measured.items():
        click.echo(f"{name:<36}{twin:>10.2f}{fast:>10.2f}{1 - fast / twin:>8.0%}")


if __name__ == "__main__":
    main()
