"""``/scheduled`` and ``/transactions``: messages that wait in topics of the brokers' own, read by position."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from verniermq.client.message import ReceivedMessage
from verniermq.contrib.console.bodies import summary
from verniermq.contrib.console.groups import group_queues
from verniermq.contrib.console.messages import everything, read_backward, read_forward, real_topic
from verniermq.contrib.console.topics import topic_list, topic_queues
from verniermq.contrib.console.view import Look, Shown, View
from verniermq.kernel import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OPERATION_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    Property,
    RequestCode,
)

MOST: Final = 100
LOOKED_AT: Final = 1000
DUE: Final = "TIMER_OUT_MS"
CHECKS: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTIONS: Final = "CID_RMQ_SYS_TRANS"
SPANS: Final = ((5, "5 seconds"), (60, "1 minute"), (600, "10 minutes"), (3600, "1 hour"), (86400, "1 day"))


async def scheduled(look: Look) -> Shown:
    levels, timed = await asyncio.gather(_levels(look), _timed(look))
    now = time.time() * 1000
    spans = [{"span": label, "count": sum(row["due_ms"] <= now + seconds * 1000 for row in timed)}
             for seconds, label in SPANS]  # fmt: skip
    data = {
        "levels": levels,
        "waiting": sum(row["waiting"] for row in levels),
        "rows": timed[:MOST],
        "spans": spans,
        "timed": len(timed),
        "looked_at": LOOKED_AT,
    }
    return Shown("Delayed", data, f"verniermq tail {SCHEDULE_TOPIC} --from-start --no-wait", is_same=False)


async def _levels(look: Look) -> list[dict[str, Any]]:
    """How many messages wait at each delay level: those behind what the broker has delivered."""
    if SCHEDULE_TOPIC not in await topic_list(look.ask):
        return []
    masters = list(await look.ask.masters())
    (queues, _), offsets = await asyncio.gather(
        topic_queues(look.ask, SCHEDULE_TOPIC, masters), look.ask.each(RequestCode.GET_ALL_DELAY_OFFSET)
    )
    waiting: dict[int, int] = {}
    for row in queues:
        done = int((offsets.get(row["broker"], {}).get("offsetTable") or {}).get(str(row["queue"] + 1), row["first"]))
        waiting[row["queue"] + 1] = waiting.get(row["queue"] + 1, 0) + max(0, row["end"] - max(done, row["first"]))
    return [{"level": level, "waiting": count} for level, count in sorted(waiting.items()) if count]


async def _timed(look: Look) -> list[dict[str, Any]]:
    """Messages with a delivery time that has not come, of the newest that were put aside, the next one first."""
    about = (await topic_list(look.ask)).get(TIMER_TOPIC)
    if about is None:
        return []
    queues, _ = await topic_queues(look.ask, TIMER_TOPIC, about["brokers"])
    now = round(time.time() * 1000)

    def waits(message: ReceivedMessage) -> bool:
        return _due(message) > now

    parts = await asyncio.gather(*(
        read_backward(look.ask, row["broker"], TIMER_TOPIC, row["queue"], row["first"], row["end"], wanted=waits,
                      most=LOOKED_AT, budget=LOOKED_AT)
        for row in queues
    ))  # fmt: skip
    mask = look.console.config.mask
    rows = [
        {**summary(one, mask), "goes_to": real_topic(one), "due_ms": _due(one)}
        for part in parts
        for one in part.messages
    ]
    return sorted(rows, key=lambda row: row["due_ms"])


def _due(message: ReceivedMessage) -> int:
    text = message.properties.get(DUE, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


async def transactions(look: Look) -> Shown:
    topics = await topic_list(look.ask)
    rows = await _open(look) if HALF_TOPIC in topics else []
    given_up = await _given_up(look, topics[GIVEN_UP_TOPIC]["brokers"]) if GIVEN_UP_TOPIC in topics else []
    data = {"rows": rows, "given_up": given_up}
    return Shown("Open transactions", data, f"verniermq tail {HALF_TOPIC} --from-start --no-wait")


async def _open(look: Look) -> list[dict[str, Any]]:
    """Half messages that no operation message names, from the broker's own mark on."""
    brokers = list(await look.ask.masters())
    halves, done = await asyncio.gather(_behind(look, HALF_TOPIC, brokers), _behind(look, OPERATION_TOPIC, brokers))
    ended: set[tuple[str, int]] = set()
    for operation in done:
        words = operation.body.decode("ascii", "replace").split(",")
        ended.update((operation.queue.broker_name, int(word)) for word in words if word.isdecimal())
    newest: dict[tuple[str, str], ReceivedMessage] = {}
    for half in halves:
        if (half.queue.broker_name, half.queue_offset) not in ended:
            newest[half.properties.get(Property.PRODUCER_GROUP, ""), half.message_id] = half
    return [_half(look, half) for half in sorted(newest.values(), key=lambda half: half.store_timestamp)]


def _half(look: Look, half: ReceivedMessage) -> dict[str, Any]:
    checks = half.properties.get(CHECKS, "0")
    return {
        **summary(half, look.console.config.mask),
        "goes_to": real_topic(half),
        "group": half.properties.get(Property.PRODUCER_GROUP, ""),
        "checks": int(checks) if checks.isascii() and checks.isdecimal() else 0,
    }


async def _given_up(look: Look, brokers: list[str]) -> list[dict[str, Any]]:
    """Transactions that nobody ended, and that brokers ask about no more, the newest first."""
    queues, _ = await topic_queues(look.ask, GIVEN_UP_TOPIC, brokers)
    parts = await asyncio.gather(*(
        read_backward(look.ask, row["broker"], GIVEN_UP_TOPIC, row["queue"], row["first"], row["end"],
                      wanted=everything, most=MOST, budget=MOST)
        for row in queues
    ))  # fmt: skip
    return [_half(look, half) for part in parts for half in part.messages]


async def _behind(look: Look, topic: str, brokers: list[str]) -> list[ReceivedMessage]:
    """What the brokers' own group has not put behind it in a topic."""
    (queues, _), (marks, _) = await asyncio.gather(
        topic_queues(look.ask, topic, brokers), group_queues(look.ask, TRANSACTIONS, topic)
    )
    committed = {(row["broker"], row["queue"]): row["committed"] for row in marks}
    parts = await asyncio.gather(*(
        read_forward(look.ask, row["broker"], topic, row["queue"],
                     max(row["first"], committed.get((row["broker"], row["queue"]), 0)), row["end"],
                     wanted=everything, most=LOOKED_AT, budget=LOOKED_AT)
        for row in queues
    ))  # fmt: skip
    return [message for part in parts for message in part.messages]


VIEWS: Final = (
    View("/scheduled", "scheduled.html", scheduled, "Delayed"),
    View("/transactions", "transactions.html", transactions, "Transactions"),
)
