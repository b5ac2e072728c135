"""Compressed bodies between VernierMQ's client and Apache's, in every kind that both know, through either broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.place import Place
from verniermq.client import Producer
from verniermq.client.compression import FLAGS, Compression
from verniermq.kernel import SysFlag

from . import sample
from .jvm import java_with
from .targets import KINDS, Target

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

COUNT = 31
LARGE = range(0, COUNT, 10)


@pytest.fixture(scope="module", params=KINDS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with KINDS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.mark.parametrize("kind", FLAGS)
async def test_java_reads_what_python_compressed(kind: Compression, broker: Target, tmp_path: Path) -> None:
    topic = f"to-java-{kind}"
    async with Producer("senders", namesrv=broker.namesrv, compression=kind, send_timeout=10) as producer:
        for index in range(COUNT):
            await producer.send(sample.message(topic, index))
    stored = await Place(broker.namesrv, broker.broker).stored(topic)

    received = java_with(tmp_path).run(
        "consume", namesrv=broker.namesrv, topic=topic, group=f"readers-{kind}", expect=COUNT, timeout=60
    )

    flags = {int(message.properties["index"]): message.sys_flag for message in stored}
    assert all(flags[index] & FLAGS[kind] == FLAGS[kind] for index in LARGE)
    events = received.events("received")
    assert sorted(event["index"] for event in events) == list(range(COUNT))
    assert all(event["bodyOk"] and event["textOk"] for event in events)


@pytest.mark.parametrize("kind", FLAGS)
async def test_python_reads_what_java_compressed(kind: Compression, broker: Target, tmp_path: Path) -> None:
    topic = f"to-python-{kind}"
    java_with(tmp_path, f"rocketmq.message.compressType={kind.upper()}").run(
        "produce", namesrv=broker.namesrv, topic=topic, group="java-senders", count=COUNT
    )

    stored = await Place(broker.namesrv, broker.broker).stored(topic)

    found = {int(message.properties["index"]): message for message in stored}
    kinds = {found[index].sys_flag & SysFlag.COMPRESSION_MASK for index in LARGE}
    assert kinds == {FLAGS[kind] & SysFlag.COMPRESSION_MASK}
    assert {index: message.body for index, message in found.items()} == {i: sample.body(i) for i in range(COUNT)}
