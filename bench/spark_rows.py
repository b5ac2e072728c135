"""The rows that ``bench/spark.py`` reads: orders, as ordinary clients would send them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from verniermq.contrib.arrow.cluster import expect
from verniermq.contrib.arrow.wire import Wire
from verniermq.contrib.spark.sink import batch_item
from verniermq.kernel import Command, RequestCode

PER_REQUEST = 500
QUEUES = 4


def properties(number: int) -> dict[str, str]:
    """What a message of an ordinary client carries, about 150 bytes."""
    return {
        "KEYS": f"order-{number}", "TAGS": random.choice(("paid", "refunded")), "WAIT": "true",
        "UNIQ_KEY": f"{random.getrandbits(64):016X}18B4AAC2{number:08X}", "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }  # fmt: skip


def body(number: int) -> bytes:
    """An order as JSON, about 120 bytes, no two alike: columns of equal values would flatter Parquet."""
    customer, amount, place = random.getrandbits(96), random.randrange(1, 100_000), random.getrandbits(64)
    return b'{"order":%d,"customer":"%024x","cents":%d,"place":"%016x","paid":true}' % (number, customer, amount, place)


TYPES = "order bigint, customer string, cents int, place string, paid boolean"
"""What is in a body, as Spark says it."""


def fill(address: str, topic: str, rows: int, make: Callable[[int], bytes] = body) -> None:
    wire = Wire(address)
    fields = {
        "topic": topic, "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6",
        "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip
    expect(wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields), RequestCode.UPDATE_AND_CREATE_TOPIC, address)
    for start in range(0, rows, PER_REQUEST):
        numbers = range(start, min(start + PER_REQUEST, rows))
        items = b"".join([batch_item(make(number), properties(number), 0) for number in numbers])
        ext = {
            "a": "bench", "b": topic, "c": "TBW102", "d": str(QUEUES), "e": str(start // PER_REQUEST % QUEUES),
            "f": "0", "g": str(int(time.time() * 1000)), "h": "0", "i": "", "j": "0", "m": "true",
        }  # fmt: skip
        expect(wire.ask(RequestCode.SEND_BATCH_MESSAGE, ext, items), RequestCode.SEND_BATCH_MESSAGE, address)
    wire.close()


def first_chunk(address: str, topic: str) -> Command:
    with Wire(address) as wire:
        ext = {"topic": topic, "queueId": "0", "beginOffset": "0", "endOffset": "16384"}
        return expect(wire.ask(RequestCode.READ_QUEUE_RANGE, ext), RequestCode.READ_QUEUE_RANGE, address)
