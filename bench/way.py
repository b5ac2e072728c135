"""The way of a message: which functions in which files a send passes in a broker, from its bytes to its answer.

``python bench/way.py`` runs a broker with its default plugins, sends plain, delayed and transactional messages over a
socket, and prints how many functions and files each kind passes; ``--list`` prints them in the order of their first
call. What is called for some messages only (a timer that falls due, an index that is written now and then) is not
counted: a function has to be called for each of several messages. Dispatch at the end of the turn is counted, the
delivery of a delayed message is not.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from pathlib import Path
from types import FrameType

import click
from send import PROPERTIES, send_request

from verniermq.kernel.broker import Broker
from verniermq.kernel.config import load

ROOT = Path(__file__).resolve().parent.parent
ROOMS = tuple(f"{ROOT / room}/" for room in ("kernel", "plugins", "protocol", "contrib"))
KINDS = {"plain": "", "delayed": "DELAY\x013\x02", "transactional": "TRAN_MSG\x01true\x02PGROUP\x01bench\x02"}
PREPARED = 4
"""The system flag of a half message."""
MESSAGES = 5
WARM_UP = 3


def frame(properties: str) -> bytes:
    request = send_request("bench", 0, 100)
    request.ext["i"] = PROPERTIES + properties
    request.ext["f"] = str(PREPARED if "TRAN_MSG" in properties else 0)
    return request.encode()


def ask(peer: socket.socket, request: bytes) -> bytes:
    peer.sendall(request)
    answer = peer.recv(65536)
    assert b'"code":0' in answer, answer
    return answer


async def passed(peer: socket.socket, request: bytes) -> list[tuple[str, str]]:
    """The functions of the broker that one send passes, in the order of their first call."""
    found: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOMS):
            found[(str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname)] = None

    sys.setprofile(note)  # of this thread, which is the broker's; the peer is asked in another one
    try:
        await asyncio.to_thread(ask, peer, request)
        await asyncio.sleep(0)  # the dispatch of the turn
    finally:
        sys.setprofile(None)
    return list(found)


async def ways(store: str) -> dict[str, list[tuple[str, str]]]:
    settings = {"broker.port": 0, "plugins.namesrv.port": 0, "broker.host": "127.0.0.1", "store.path": store}
    async with Broker(load(None, settings, environ={})) as broker:
        host, _, port = broker.address.rpartition(":")
        with socket.create_connection((host, int(port))) as peer:
            result = {}
            for kind, properties in KINDS.items():
                for _ in range(WARM_UP):
                    await asyncio.to_thread(ask, peer, frame(properties))
                traces = [await passed(peer, frame(properties)) for _ in range(MESSAGES)]
                result[kind] = [one for one in traces[0] if all(one in other for other in traces)]
        return result


@click.command(help=__doc__)
@click.option("--list", "show", is_flag=True, help="Print the functions too.")
def main(show: bool) -> None:
    os.environ["VERNIERMQ_PURE"] = "1"  # the compiled way shows none of its functions
    with tempfile.TemporaryDirectory() as store:
        for kind, functions in asyncio.run(ways(store)).items():
            files = {file for file, _ in functions}
            kernel = [file for file in files if file.startswith("kernel")]
            print(f"{kind}: {len(functions)} functions in {len(files)} files, {len(kernel)} of them the kernel's")
            for file, name in functions if show else ():
                print(f"    {file:40} {name}")


if __name__ == "__main__":
    main()
