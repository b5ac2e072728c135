"""``verniermq broker --for-tests``: a broker that obeys the process that started it, in any language.

The parent writes commands to our standard input, a line each, and reads one line of JSON for each from our
standard output; the first line comes by itself when the broker is ready::

    → {"ready": true, "broker": "127.0.0.1:40001", "namesrv": "127.0.0.1:40002", "pid": 4711, "store": "…"}
    ← advance 3600                    an hour of delays, retries and time-outs passes
    → {"ok": true}
    ← reset                           everything is gone: messages, topics, groups, clients; the addresses stay
    → {"ready": true, …}

When our standard input ends, because the parent did, the broker ends too: no test leaves one behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import anyio
import attrs
import orjson
from anyio.abc import ObjectReceiveStream

from verniermq.cli.process import collect_garbage_rarely, description
from verniermq.kernel.broker import Broker
from verniermq.kernel.config import Configuration
from verniermq.testing.clock import MovableClock

STOP: Final = ("stop", "")
"""What ends the broker; the empty one is the end of our standard input."""


async def run_for_tests(configuration: Configuration) -> None:
    clock = MovableClock()
    sending, lines = anyio.create_memory_object_stream[str](math.inf)
    loop = asyncio.get_running_loop()

    def send(line: str) -> None:
        loop.call_soon_threadsafe(sending.send_nowait, line)

    threading.Thread(target=_read_lines, args=(send,), daemon=True).start()
    with sending, lines:
        again = True
        while again:
            async with Broker(configuration, clock) as broker:
                collect_garbage_rarely()
                _say({"ready": True, **description(broker)})
                again = await _obey(lines, clock)
                configuration = _same_ports(configuration, broker)
            if again:
                shutil.rmtree(configuration.store.path)


async def _obey(lines: ObjectReceiveStream[str], clock: MovableClock) -> bool:
    """Carry out commands until one ends this broker; say whether a fresh one is wanted."""
    async for line in lines:
        command, _, argument = line.strip().partition(" ")
        if command == "reset":
            return True
        if command in STOP:
            return False
        if command == "advance":
            try:
                await clock.rest()
                clock.advance(float(argument))
                _say({"ok": True})
            except ValueError as error:
                _say({"error": f"advance {argument!r}: {error}"})
        else:
            _say({"error": f"unknown command {command!r}; there are advance SECONDS, reset and stop"})
    return False


def _same_ports(configuration: Configuration, broker: Broker) -> Configuration:
    namesrv_port = int(broker.name_servers[0].rpartition(":")[2]) if broker.name_servers else 0
    tables, origin = configuration.plugin_tables, configuration.origin
    return attrs.evolve(
        configuration,
        broker=attrs.evolve(configuration.broker, port=broker.advertised.port),
        plugin_tables={**tables, "namesrv": {**tables.get("namesrv", {}), "port": namesrv_port}},
        origin=attrs.evolve(origin, keys={**origin.keys, "plugins.namesrv.port": "the last broker"}),
    )


def _read_lines(send: Callable[[str], Any]) -> None:
    """In a thread that nothing waits for: a broker that cannot start ends at once, whether or not its parent does.

    Read past Python's own buffer, whose lock a thread must not hold when the process ends.
    """
    rest = b""
    with contextlib.suppress(RuntimeError):  # the loop is closed: there is no broker any more
        while data := os.read(sys.stdin.fileno(), 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                send(line.decode(errors="replace"))
                if line.strip() == b"stop":
                    return
        send("")


def _say(data: dict[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(data).decode() + "\n")
    sys.stdout.flush()
