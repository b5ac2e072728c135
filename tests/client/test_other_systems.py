"""The client where there is no Unix: imported and run without what only Unix, or only Linux, has."""

from __future__ import annotations

import sys

import anyio
import pytest

from tests.client.place import Place

pytestmark = pytest.mark.anyio

PROGRAM = """
import os, sys
for name in ("fcntl", "resource", "uvloop", "pwd", "grp", "termios"):
    sys.modules[name] = None  # an import of it fails from now on
for name in ("fork", "register_at_fork", "getuid", "geteuid"):
    if hasattr(os, name):
        delattr(os, name)

import anyio
from verniermq import client
from verniermq.client import Message, Producer, PushConsumer, sync

namesrv, topic = sys.argv[1:]


async def main():
    async with Producer("senders", namesrv=namesrv) as producer:
        print(await (await producer.submit(Message(topic, b"async"))))
    consumer = PushConsumer("elsewhere", namesrv=namesrv, start="first")
    consumer.subscribe(topic)
    async with consumer:
        async for message in consumer:
            print("got", message.body)
            break


anyio.run(main)
with sync.Producer("senders", namesrv=namesrv) as producer:
    print(producer.send(Message(topic, b"blocking")).status)
"""


async def test_the_client_runs_without_what_only_unix_has(place: Place) -> None:
    topic = await place.topic("elsewhere")

    done = await anyio.run_process([sys.executable, "-c", PROGRAM, place.namesrv, topic], check=False)

    printed = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert "got b'async'" in printed
    assert printed.rstrip().endswith("SEND_OK")
