"""The two sides, each with its own defaults: Apache's name server and broker, and VernierMQ with both in one.

Apache's broker gets a heap of 1 GiB and otherwise the options of its own start script, but for ``AlwaysPreTouch``: that
would count the whole heap as used from the start. Its name server gets 256 MiB.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from tests.interop.apache import ApacheBroker, Scale
from tests.interop.processes import LOOPBACK, ServerProcess, free_ports
from tests.interop.verniermq_process import VernierMQBroker

G1: Final = (
    "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25", "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0", "-XX:-OmitStackTraceInFastThrow", "-XX:-UseLargePages",
)  # fmt: skip
ITS_OWN: Final = Scale(
    broker=("-server", "-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=15g", *G1),
    namesrv=("-server", "-Xms256m", "-Xmx256m"),
    properties={},
)
STOP_SECONDS: Final = 120.0


class Side(Protocol):
    """One of the two, not yet running; it keeps its ports over restarts."""

    namesrv: str
    broker: str
    store: Path
    is_slow_at_first: bool
    """Whether it is compiled while it runs, and has to be warmed up for long."""

    @property
    def pids(self) -> list[int]:
        """All that it takes to serve a client."""

    def prepare(self) -> None:
        """Start what is there before a broker is."""

    def launch(self) -> ServerProcess:
        """Start the broker and return at once."""

    def kill(self) -> None: ...

    def close(self) -> None:
        """End everything."""


class Apache(ApacheBroker):
    is_slow_at_first = True

    def __init__(self, folder: Path, sync_flush: bool = False) -> None:
        super().__init__(folder, properties={"flushDiskType": "SYNC_FLUSH"} if sync_flush else None, scale=ITS_OWN)

    def prepare(self) -> None:
        self.start_namesrv()


class VernierMQ(VernierMQBroker):
    is_slow_at_first = False

    def __init__(self, folder: Path, sync_flush: bool = False, *, python: Sequence[str] = ()) -> None:
        config = folder / "broker.toml"
        config.write_text('[store]\nflush = "sync"\n' if sync_flush else "")
        super().__init__(folder, config=config)
        if python:
            self.python = python
        # Known before the start: the client is already trying when it comes.
        self.broker = f"{LOOPBACK}:{free_ports(-2)}"
        self.namesrv = f"{LOOPBACK}:{free_ports()}"

    @property
    def pids(self) -> list[int]:
        return [self.process.pid] if self.process else []

    def prepare(self) -> None:
        """Nothing: its name server is inside."""

    def close(self) -> None:
        self.kill()


MakeSide = Callable[[Path, bool], Side]
PLAIN: Final[MakeSide] = partial(VernierMQ, python=("env", "VERNIERMQ_PURE=1", sys.executable))
"""Without what is compiled."""

SIDES: Final[dict[str, MakeSide]] = {"Apache": Apache, "VernierMQ": VernierMQ}
