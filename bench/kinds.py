"""What each kind of message costs beside a plain one, in one run.

``python bench/kinds.py`` starts a broker with its default plugins in a process of its own and measures, in turns:

- sent: 8 connections that keep 8 requests on the way, with plain, delayed, timed, transactional (the half message and
  its commit, both answered) and batched messages; and plain ones to a broker without the plugins for the other kinds
- delivered: how fast a backlog of delayed and of timed messages comes when all of it is due at once
- consumed: how fast a consumer gets past the messages of a topic, all of them, by tag and by SQL; one in four matches
- SQL alone: tests of a three-term condition a second, without a broker

Every figure is the best of ``--rounds``, since whatever else the machine does can only make it worse. "µs of CPU" is
what the broker itself spends on a message, which a busy machine changes least; the ratios are made of it.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import attrs
import click
import orjson
from load import LENGTH, Sender, drive
from rich.console import Console
from rich.table import Table
from send import PROPERTIES

from verniermq.kernel import Command, Connection, RequestCode, connect, format_properties
from verniermq.kernel.loop import backend_options
from verniermq.plugins.filter.sql import compile_sql
from verniermq.testing import BrokerProcess, broker_process

CONNECTIONS, WINDOW, BATCH = 8, 8, 32
HOUR = 3600
KINDS = ("filter", "sql", "txn", "reply", "pop", "schedule", "retry", "order")
SQL = "price > 100 AND region IN ('eu', 'uk') AND kind = 'paid'"
CONSUMERS = {"all": ("*", "TAG"), "by tag": ("paid", "TAG"), "by SQL, three terms": (SQL, "SQL92")}


# --- measuring ----------------------------------------------------------------------------


@attrs.frozen
class Figure:
    rate: float
    """Messages a second."""
    cpu: float
    """Seconds of the broker's CPU for each."""


Measurement = Callable[[], Awaitable[Figure]]


@attrs.define
class Meter:
    """From its making on: how much time has passed, and how much of it the broker has used."""

    process: BrokerProcess
    started: float = attrs.Factory(time.perf_counter)
    used: float = attrs.Factory(lambda self: cpu_seconds(self.process.pid), takes_self=True)

    def figure(self, count: int | None = None, rate: float = 0.0) -> Figure:
        """For so many messages since then, or for a rate that was kept up all the time."""
        passed = time.perf_counter() - self.started
        used = cpu_seconds(self.process.pid) - self.used
        rate = rate if count is None else count / passed
        return Figure(rate, used / passed / rate)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, in user and in system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- what is sent -------------------------------------------------------------------------


def send_request(topic: str, queue: int, body: bytes, properties: str = PROPERTIES, flag: int = 0) -> Command:
    ext = {
        "a": "bench", "b": topic, "c": "TBW102", "d": "8", "e": str(queue), "f": str(flag),
        "g": str(int(time.time() * 1000)), "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        "n": "broker-a",
    }  # fmt: skip
    return Command.request(RequestCode.SEND_MESSAGE_V2, ext, body)


def batch_request(topic: str, queue: int, bodies: list[tuple[bytes, str]]) -> Command:
    entries = b""
    for body, text in bodies:
        properties = text.encode()
        entries += struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body)) + body
        entries += struct.pack(">h", len(properties)) + properties
    request = send_request(topic, queue, entries, "")
    return Command.request(RequestCode.SEND_BATCH_MESSAGE, {**request.ext, "m": "true"}, entries)


@attrs.define(eq=False)
class Transactions(Sender):
    """A connection whose half messages are committed as soon as they are answered; commits are what counts."""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        position, following = 0, []
        while len(data) - position >= 4:
            (length,) = LENGTH.unpack_from(data, position)
            if len(data) - position < 4 + length:
                break
            header_size = LENGTH.unpack_from(data, position + 4)[0] & 0xFFFFFF
            answer = orjson.loads(data[position + 8 : position + 8 + header_size])
            position += 4 + length
            assert answer["code"] == 0, answer["remark"]
            if answer.get("extFields"):
                following.append(commit(answer["extFields"]))
            else:
                self.answered += 1
                following.append(self.frame)
        self._rest = data[position:]
        self._transport.write(b"".join(following))


def commit(half: dict[str, str]) -> bytes:
    ext = {
        "producerGroup": "bench", "tranStateTableOffset": half["queueOffset"], "commitOrRollback": "8",
        "commitLogOffset": str(int(half["msgId"][16:], 16)), "msgId": half["transactionId"],
    }  # fmt: skip
    return Command.request(RequestCode.END_TRANSACTION, ext).encode()


def sending(process: BrokerProcess, bare: BrokerProcess, body: bytes, seconds: float) -> dict[str, Measurement]:
    """A measurement for each kind; the frames differ in their properties alone."""

    def frames(topic: str, properties: str = PROPERTIES, flag: int = 0) -> list[bytes]:
        return [send_request(topic, queue, body, properties, flag).encode() for queue in range(CONNECTIONS)]

    def of(
        frames: list[bytes], each: int = 1, sender: type[Sender] = Sender, process: BrokerProcess = process
    ) -> Measurement:
        async def measure() -> Figure:
            meter = Meter(process)
            rate = await drive(process.broker, frames, window=WINDOW, seconds=seconds, sender=sender)
            return meter.figure(rate=each * rate)

        return measure

    batches = [batch_request("batched", queue, [(body, PROPERTIES)] * BATCH).encode() for queue in range(CONNECTIONS)]
    half = frames("transactional", PROPERTIES + "TRAN_MSG\x01true\x02PGROUP\x01bench\x02", flag=4)
    return {
        "plain": of(frames("plain")),
        "plain, without these plugins": of(frames("plain"), process=bare),
        "delayed by a level": of(frames("delayed", PROPERTIES + "DELAY\x0118\x02")),
        "for a certain time": of(frames("timed", PROPERTIES + f"TIMER_DELAY_SEC\x01{100 * HOUR}\x02")),
        "transactional": of(half, sender=Transactions),
        f"in batches of {BATCH}": of(batches, each=BATCH),
    }


# --- what comes out -----------------------------------------------------------------------


async def all_at_once(address: str, requests: list[Command]) -> None:
    """Send prepared requests, a few at a time, and insist on success."""
    connection = await connect(address)
    for start in range(0, len(requests), 64):
        answers = await asyncio.gather(*[connection.request(request) for request in requests[start : start + 64]])
        assert {answer.code for answer in answers} == {0}, answers[0].remark
    connection.close()


async def delivered(process: BrokerProcess, topic: str, properties: str, body: bytes, count: int) -> Figure:
    """Make waiting messages due and see how fast they come; the clock stands an hour later then."""
    requests = [send_request(topic, 0, body, PROPERTIES + properties) for _ in range(count)]
    connection = await connect(process.broker)
    before = await max_offset(connection, topic)
    await all_at_once(process.broker, requests)
    meter = Meter(process)
    process.advance(HOUR + 1)
    while await max_offset(connection, topic) < before + count:  # noqa: ASYNC110 - the socket tells
        await asyncio.sleep(0.005)
    connection.close()
    return meter.figure(count)


async def max_offset(connection: Connection, topic: str) -> int:
    answer = await connection.request(Command.request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}))
    return int(answer.ext.get("offset", 0))


async def fill(address: str, topic: str, body: bytes, count: int) -> None:
    kinds = ("paid", "open", "cancelled", "refunded")
    texts = [
        format_properties({"TAGS": kind, "kind": kind, "price": str(200 + number), "region": "uk"})
        for number, kind in enumerate(kinds)
    ]
    entry = [(body, text) for text in texts] * (BATCH // len(texts))
    await all_at_once(address, [batch_request(topic, 0, entry) for _ in range(count // BATCH)])


async def consumed(process: BrokerProcess, topic: str, expression: str, kind: str, count: int) -> Figure:
    """Messages passed a second, matching or not, by one consumer that pulls without decoding."""
    connection = await connect(process.broker)
    offset, meter = 0, Meter(process)
    while offset < count:
        ext = {
            "consumerGroup": "bench", "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": expression,
            "expressionType": kind, "subVersion": "0",
        }  # fmt: skip
        answer = await connection.request(Command.request(RequestCode.PULL_MESSAGE, ext))
        offset = int(answer.ext["nextBeginOffset"])
    connection.close()
    return meter.figure(count)


def sql_tests(seconds: float) -> float:
    """Tests a second of messages of which one in four passes, and each term decides about some."""
    test = compile_sql(SQL)
    messages = [
        {"price": "250", "region": "uk", "kind": "paid"},
        {"price": "99", "region": "uk", "kind": "paid"},
        {"price": "250", "region": "us", "kind": "paid"},
        {"price": "250", "region": "eu", "kind": "open"},
    ] * 250
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        passed = sum([test(message) for message in messages])
        assert passed == len(messages) // 4
        done += len(messages)
    return done / (time.perf_counter() - started)


# --- in turns -----------------------------------------------------------------------------


async def best_of(rounds: int, measurements: dict[str, Measurement]) -> dict[str, Figure]:
    """Each in turn, again and again, so that what happens on the machine meets all of them."""
    best = dict.fromkeys(measurements, Figure(0.0, float("inf")))
    for _ in range(rounds):
        for name, measure in measurements.items():
            one = await measure()
            best[name] = Figure(max(best[name].rate, one.rate), min(best[name].cpu, one.cpu))
    return best


async def measure(
    process: BrokerProcess, bare: BrokerProcess, size: int, seconds: float, rounds: int, count: int, console: Console
) -> None:
    body = b"x" * size
    count -= count % BATCH
    sent = await best_of(rounds, sending(process, bare, body, seconds))
    in_an_hour = f"TIMER_DELAY_SEC\x01{HOUR}\x02"
    deliveries = await best_of(
        rounds,
        {
            "by level": lambda: delivered(process, "level-due", "DELAY\x0117\x02", body, count // 4),
            "at a certain time": lambda: delivered(process, "time-due", in_an_hour, body, count // 4),
        },
    )
    await fill(process.broker, "consumed", body, count)
    readings = await best_of(
        rounds,
        {
            name: partial(consumed, process, "consumed", expression, kind, count)
            for name, (expression, kind) in CONSUMERS.items()
        },
    )
    print_table(console, "sent", sent, sent["plain"], "plain")
    print_table(console, "delivered when due", deliveries, sent["plain"], "plain, sent")
    print_table(console, "passed by a consumer, one in four matches", readings, readings["all"], "all")


def print_table(console: Console, title: str, figures: dict[str, Figure], base: Figure, beside: str) -> None:
    table = Table("", "messages/s", "µs of CPU", f"per CPU second, beside {beside}", title=title)
    for name, one in figures.items():
        table.add_row(name, f"{one.rate:,.0f}", f"{one.cpu * 1e6:.1f}", f"{base.cpu / one.cpu:.2f}")
    console.print(table)


@click.command(help=__doc__)
@click.option("--size", default=300, show_default=True, help="Bytes of a message's body.")
@click.option("--seconds", default=1.0, show_default=True, help="How long each measurement of sends takes.")
@click.option("--rounds", default=3, show_default=True, help="How often; the best one counts.")
@click.option("--count", default=40_000, show_default=True, help="Messages to consume; a quarter as many to deliver.")
def main(size: int, seconds: float, rounds: int, count: int) -> None:
    console = Console()
    roomy = "--set=store.segment_size=1GiB"
    with (
        broker_process(None, roomy) as process,
        broker_process(None, roomy, f"--no-plugins={','.join(KINDS)}") as bare,
        console.status("measuring"),
    ):
        anyio.run(measure, process, bare, size, seconds, rounds, count, console, backend_options=backend_options())
    rate = max(sql_tests(seconds) for _ in range(rounds))
    console.print(f"{rate:,.0f} SQL tests a second: {SQL}")


if __name__ == "__main__":
    main()
