"""What a message costs the loop without sockets: frame, record, answer, queue entry and key index, by CPU time.

``python bench/chain.py`` gives the bytes of frames, as Java's client writes them, to a broker in this process with its
default plugins, 64 messages at a time, and prints the microseconds a message: the least, the fifth and the middle of
many such spans. On a busy machine the least is what can be compared, and then only within one run: ``--against`` takes
the sources of another commit (a folder), measures both in turns and prints the ratio.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import orjson

PER_SPAN = 64
SPANS = 240


class Nowhere:
    """A transport that swallows what is written."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40000) if name == "peername" else None

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    abort = close


def properties(number: int, keys: bool) -> str:
    own = f"KEYS\x01order-{number}\x02TAGS\x01paid\x02" if keys else ""
    return f"{own}UNIQ_KEY\x017F0000011267000018B4AAC247B7{number & 0xFFFF:04X}\x02WAIT\x01true\x02"


def frame(number: int, code: int, text: str, body: bytes, *, flag: int = 0, binary: bool = False) -> bytes:
    fields = {
        "a": "bench", "b": "bench", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0", "g": "1794000000123",
        "h": "0", "i": text, "j": "0", "k": "false", "m": "true" if code == 320 else "false", "n": "broker-a",
    }  # fmt: skip
    if binary:
        from verniermq.kernel.remoting.command import Command

        return Command(code, number, flag, fields, language="JAVA", version=479, body=body, binary=True).encode()
    header = orjson.dumps(
        {"code": code, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": number,
         "serializeTypeCurrentRPC": "JSON", "version": 479}
    )  # fmt: skip
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def single(number: int, size: int, **more: Any) -> bytes:
    return frame(number, 310, properties(number, True), b"%016d" % number + b"x" * (size - 16), **more)


def batch(number: int, size: int, *, keys: bool = False, count: int = 32) -> bytes:
    parts = []
    for each in range(number, number + count):
        body, text = b"%016d" % each + b"x" * (size - 16), properties(each, keys).encode()
        parts += [struct.pack(">iiiii", 22 + size + len(text), 0, 0, 0, size), body, struct.pack(">h", len(text)), text]
    return frame(number, 320, properties(number, False), b"".join(parts))


def singles(size: int, **more: Any) -> Callable[[int], bytes]:
    return lambda start: b"".join(single(start + i, size, **more) for i in range(PER_SPAN))


def batches(size: int, *, keys: bool = False) -> Callable[[int], bytes]:
    return lambda start: batch(start, size, keys=keys) + batch(start + 32, size, keys=keys)


KINDS: dict[str, Callable[[int], bytes]] = {
    "single, 128 bytes": singles(128),
    "single, 1 KiB": singles(1024),
    "single, 1 KiB, binary header": singles(1024, binary=True),
    "one-way, 128 bytes": singles(128, flag=2),
    "batch of 32, 128 bytes": batches(128),
    "batch of 32, 128 bytes, KEYS and TAGS": batches(128, keys=True),
    "batch of 32, 1 KiB": batches(1024),
}


def stored(broker: Any) -> int:
    """How many messages the queues have."""
    queues = [broker.store.queue("bench", number) for number in range(4)]
    return sum(queue.max_offset for queue in queues if queue is not None)


async def measure(store: str) -> dict[str, list[float]]:
    """Kind → microseconds a message, sorted."""
    from verniermq.kernel.broker import Broker
    from verniermq.kernel.config import load

    settings = {"broker.port": 0, "plugins.disable": ["namesrv"], "broker.host": "127.0.0.1", "store.path": store}
    async with Broker(load(None, settings, environ={})) as broker:
        connections = {kind: broker.server._make_connection() for kind in KINDS}
        for kind, connection in connections.items():
            connection.connection_made(Nowhere())  # type: ignore[arg-type]
            connection.data_received(KINDS[kind](0))
            await asyncio.sleep(0.2)  # the topic is kept on the disk
        gc.collect()
        gc.freeze()
        gc.disable()
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for span in range(SPANS):
            for kind, make in KINDS.items():
                data, connection = make(span * PER_SPAN), connections[kind]
                before = stored(broker)
                began = time.thread_time_ns()
                connection.data_received(data)
                connection._turn.end()
                broker.catch_up()
                used = time.thread_time_ns() - began
                if stored(broker) - before == PER_SPAN:
                    found[kind].append(used / 1000 / PER_SPAN)
                else:  # a turn took long, as on a busy machine, and the next one serves the rest
                    await asyncio.sleep(0.01)
            if span % 8 == 0:
                await asyncio.sleep(0)
        for connection in connections.values():
            connection.connection_lost(None)
        return {kind: sorted(spans) for kind, spans in found.items()}


def in_process(sources: str) -> dict[str, list[float]]:
    """The same of other sources, in a process of their own."""
    with tempfile.TemporaryDirectory() as links:
        package = Path(links) / "verniermq"
        package.mkdir()
        for folder in ("kernel", "protocol", "plugins", "client", "cli", "testing", "contrib"):
            if (found := Path(sources).resolve() / folder).is_dir():
                (package / folder).symlink_to(found)
        environment = {**os.environ, "PYTHONPATH": links}
        code = (
            # The finder of the editable install would lead back here.
            "import sys, runpy; sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in repr(one)]; "
            f"sys.argv = ['chain.py', '--json']; runpy.run_path({__file__!r}, run_name='__main__')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def rows(found: dict[str, list[float]], other: dict[str, list[float]] | None) -> Iterator[str]:
    for kind, spans in found.items():
        least, fifth, middle = spans[0], spans[len(spans) // 5], spans[len(spans) // 2]
        line = f"{kind:40} least {least:6.2f}  fifth {fifth:6.2f}  middle {middle:6.2f} µs"
        if other is not None:
            line += f"   before {other[kind][0]:6.2f}: {least / other[kind][0]:5.2f}"
        yield line


@click.command(help=__doc__)
@click.option("--against", type=click.Path(exists=True), help="The sources of another commit.")
@click.option("--rounds", default=1, show_default=True, help="How often both are measured, in turns.")
@click.option("--json", "as_json", is_flag=True, help="Print all spans.")
def main(against: str | None, rounds: int, as_json: bool) -> None:
    here = str(Path(__file__).resolve().parent.parent)
    if as_json:
        import uvloop

        with tempfile.TemporaryDirectory() as store:
            click.echo(json.dumps(uvloop.run(measure(store))))
        return
    found: dict[str, list[float]] = {}
    other: dict[str, list[float]] = {}
    for _ in range(rounds):
        for sources, into in ((here, found), (against, other)):
            if sources is not None:
                for kind, spans in in_process(sources).items():
                    into[kind] = sorted(into.get(kind, []) + spans)
    for line in rows(found, other or None):
        click.echo(line)


if __name__ == "__main__":
    main()
