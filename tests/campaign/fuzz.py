"""Random requests: every code with wrong fields and bodies, in both header forms, and with bytes changed.

Fields are those that a request's class declares, or that the source reads, so a new one takes part by itself. The
broker has to live, to serve its neighbours, to keep within its memory, and to know what to say: a traceback in its log
is a failure.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import re
from pathlib import Path

import anyio
import anyio.to_thread
import attrs

from tests.campaign.neighbour import Neighbour, resident_mib
from tests.campaign.outcome import Kind, Outcome
from tests.campaign.results import ROOT
from tests.plugins.txn.peers import peer
from verniermq import kernel, plugins
from verniermq.kernel import Command, RequestCode
from verniermq.kernel.requests import Request
from verniermq.testing import BrokerProcess
from verniermq.testing.broker import BrokerProcessFailed

FRAMES = 20_000
BURST = 100
MOST_GROWTH_MIB = 300

TEXTS = ("orders", "billing", "fuzz", "%RETRY%billing", "TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster")
GOOD: dict[str, tuple[str, ...]] = {
    "queueId": ("0", "1", "3", "-1"), "e": ("0", "1"), "d": ("4", "1"), "queueOffset": ("0", "1", "100"),
    "offset": ("0", "1", "300"), "commitOffset": ("0", "5"), "maxMsgNums": ("32", "1"), "sysFlag": ("4", "5", "2", "0"),
    "f": ("0", "4", "8"), "suspendTimeoutMillis": ("0", "1", "20"), "pollTime": ("0", "10"), "invisibleTime": ("1000",),
    "subscription": ("*", "a || b", "a > 1"), "expressionType": ("TAG", "SQL92"), "exp": ("*",), "expType": ("TAG",),
    "i": ("KEYS\x01k\x02", "DELAY\x011\x02", "TIMER_DELAY_SEC\x013\x02", "TRAN_MSG\x01true\x02PGROUP\x01g\x02", ""),
    "properties": ("KEYS\x01k\x02", ""), "m": ("true", "false"), "g": ("1700000000000",), "h": ("0",), "j": ("0", "3"),
    "perm": ("6", "4"), "readQueueNums": ("4", "8"), "writeQueueNums": ("4", "8"), "topicFilterType": ("SINGLE_TAG",),
    "extraInfo": ("0 1700000000000 60000 0 0 broker-a 0 0",), "commitOrRollback": ("8", "12", "0"),
    "tranStateTableOffset": ("0", "1"), "commitLogOffset": ("0", "300"), "delayLevel": ("0", "1", "-1"),
    "timestamp": ("0", "1700000000000"), "maxNum": ("32",), "beginTimestamp": ("0",),
    "endTimestamp": ("9223372036854775807",),
    "key": ("k",), "clientId": ("c",), "clientID": ("c",), "brokerId": ("0", "1"), "order": ("true", "false"),
}  # fmt: skip
HOSTILE = (
    "", "x", "-1", "0", "99999999999999999999999", "9223372036854775807", "-9223372036854775808", "2147483648", "1e3",
    "null", "0x10", "true", "NaN", "\0", "١٢", "../../etc", "a" * 300, "b" * 70_000, "%RETRY%", "%DLQ%g", "\x01\x02",
   " ",    "[[[[", '{"$ref":"$"}', "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "💥", "\ud7ff", "a b", "a@b",
)  # fmt: skip
BODIES = (
    b"", b"{}", b"[]", b"null", b"7", b"body", b"\xff\xfe", bytes(100), b"[" * 500, b'{"a":' * 500,
    b'{"clientID":"c","consumerDataSet":[{"groupName":"billing","messageModel":"CLUSTERING","subscriptionDataSet":'
    b'[{"topic":"orders","subString":"*","expressionType":"TAG"}]}],"producerDataSet":[{"groupName":"p"}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":[],"subscriptionDataSet":{}}]}',
    b'{"consumerGroup":"billing","clientId":"c","mqSet":[{"topic":"orders","brokerName":"broker-a","queueId":0}]}',
    b'{"consumerGroup":"billing","clientId":"c","mqSet":{"$ref":"$.a"},"a":[{"$ref":"$.a"}]}',
    b'{"groupName":"billing","retryMaxTimes":3,"retryQueueNums":1}', b'{"groupName":"billing","retryQueueNums":1e308}',
    b'{"topicConfigList":[{"topicName":"orders","readQueueNums":4,"writeQueueNums":4,"perm":6}]}',
    b'{"topic":"orders","consumerGroup":"billing","mode":"POP","popShareQueueNum":1}',
    b'{"brokerName":"broker-a","acks":[{"consumerGroup":"billing","topic":"orders","retry":"0","startOffset":0,'
    b'"queueId":0,"reviveQueueId":0,"popTime":1,"invisibleTime":1000,"bitSet":"AQ=="}]}',
    b'{"topic":"orders","consumerGroup":"billing","strategyName":"AVG","clientId":"c","messageModel":"CLUSTERING"}',
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42}}', b"a=b\nc=d\nname=x",
)  # fmt: skip


def declared_fields() -> dict[int, list[str]]:
    """The fields of each request that has a class, by its code."""
    for folder in (kernel.__path__, plugins.__path__):
        prefix = "verniermq.kernel." if folder is kernel.__path__ else "verniermq.plugins."
        for module in pkgutil.walk_packages(folder, prefix):
            if "request" in module.name:
                importlib.import_module(module.name)
    found: dict[int, set[str]] = {}
    waiting: list[type[Request]] = [Request]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if hasattr(cls, "code"):
            found.setdefault(cls.code, set()).update(field.wire for field in cls.fields if field.wire)
    return {int(code): sorted(names) for code, names in found.items() if names}


def field_names() -> list[str]:
    """All fields that the source reads out of requests, also where no class declares them."""
    reads = re.compile(r"""(?:\b(?:text|integer|boolean)\(|ext\[|ext\.get\()\s*["'](\w{1,40})["']""")
    found: set[str] = set(GOOD)
    for folder in ("kernel", "protocol", "plugins", "contrib"):
        for file in (ROOT / folder).rglob("*.py"):
            found.update(reads.findall(file.read_text()))
    return sorted(found)


@attrs.define
class Fuzzer:
    """Frames without end, from a seed."""

    chance: random.Random
    codes: list[int]
    texts: tuple[str, ...] = TEXTS
    bodies: tuple[bytes, ...] = BODIES
    names: list[str] = attrs.field(factory=field_names)
    declared: dict[int, list[str]] = attrs.field(factory=declared_fields)

    def command(self) -> Command:
        chance = self.chance
        code = chance.choice(self.codes) if chance.random() < 0.98 else chance.randrange(70_000)
        names = self.declared.get(code, self.names) if chance.random() < 0.7 else self.names
        fields = {name: self.good(name) for name in names if chance.random() < 0.95}
        for name in chance.choices(names, k=chance.choice((0, 0, 1, 1, 2, 5))):
            fields[name] = chance.choice(HOSTILE)
        body = chance.choice(self.bodies)
        if body and chance.random() < 0.3:
            body = self._damaged(body, 0)
        command = Command.request(code, fields, body, binary=chance.random() < 0.5 and code < 32768)
        command.opaque = chance.randrange(1, 2**31)
        if chance.random() < 0.05:
            command.flag = chance.randrange(4)
        return command

    def frame(self) -> bytes:
        command = self.command()
        try:
            whole = command.encode()
        except ValueError:  # a binary header holds no text of 70,000 characters
            command.binary = False
            whole = command.encode()
        return whole

    def damaged_frame(self) -> bytes:
        """One whose bytes are wrong; most connections end with it."""
        return self._damaged(self.frame(), 4)

    def good(self, name: str) -> str:
        return self.chance.choice(GOOD.get(name, self.texts))

    def _damaged(self, data: bytes, start: int) -> bytes:
        """Some bytes changed from ``start`` on; the length stays."""
        changed = bytearray(data)
        for _ in range(self.chance.randrange(1, 4)):
            changed[self.chance.randrange(start, len(changed))] = self.chance.randrange(256)
        return bytes(changed)


async def _attack(address: str, fuzzer: Fuzzer, frames: int, outcome: Outcome) -> None:
    """Send frames; after each burst wait until the broker has come so far, or has closed the connection."""
    host, _, port = address.rpartition(":")
    for _ in range(frames // BURST):
        burst = b"".join([fuzzer.frame() for _ in range(BURST - 1)])
        marker = Command.request(RequestCode.GET_MAX_OFFSET, {"topic": "marker", "queueId": "0"})
        marker.opaque = 2**31 - 1
        async with await anyio.connect_tcp(host, int(port)) as stream:
            try:
                await stream.send(burst + marker.encode())
                with anyio.fail_after(60):
                    received = b""
                    while b'"opaque":2147483647' not in received:
                        received = received[-40:] + await stream.receive()
                outcome.checked += BURST
                await stream.send(fuzzer.damaged_frame())
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                outcome.notes["connections closed early"] += 1


async def fuzz(seed: int, folder: Path, frames: int = FRAMES) -> Outcome:
    chance = random.Random(seed)
    outcome = Outcome()
    enabled = "default,spark" if seed % 2 else "default"  # some requests are those of plugins on request
    settings = [f"--set=plugins.enable={enabled}", "--set=remoting.idle_timeout=5m", "--set=store.segment_size=16MiB"]
    process = BrokerProcess(folder / "store", settings)
    process.start()
    try:
        neighbour = Neighbour(process.broker, process.pid, outcome)
        codes = sorted(RequestCode)
        before = 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(neighbour.live)
            for part, address in enumerate((process.broker, process.namesrv) * 2):
                share = frames * 2 // 5 if address == process.broker else frames // 10
                await _attack(address, Fuzzer(random.Random(chance.random()), codes), share, outcome)
                if part == 0:
                    before = resident_mib(process.pid)
            tasks.cancel_scope.cancel()
        growth = resident_mib(process.pid) - before
        outcome.expect(growth < MOST_GROWTH_MIB, "wrong", f"seed {seed}: the broker grew by {growth:.0f} MiB")
        async with peer(process.broker) as client:
            await neighbour.check(client)
        await anyio.to_thread.run_sync(process.stop)
        await anyio.to_thread.run_sync(process.start)
        async with peer(process.broker) as client:
            await neighbour.check(client)
        await anyio.to_thread.run_sync(process.stop)
    except* (BrokerProcessFailed, OSError, TimeoutError) as errors:
        outcome.fail("wrong", f"seed {seed}: {errors.exceptions[0]!r}"[:1500])
    finally:
        process.kill()
    said = process.log.read_text(errors="replace")
    for found in sorted({said[at.start() :][:1500] for at in re.finditer("Traceback", said)})[:3]:
        outcome.fail("wrong", f"seed {seed}: a traceback in the log: {found}")
    return outcome


def run(seed: int, folder: Path) -> Outcome:
    return anyio.run(fuzz, seed, folder)


KIND = Kind(
    "fuzz",
    "frames",
    "Whatever frames peers send, the broker lives, serves its neighbours, and keeps within its memory.",
    run,
)
