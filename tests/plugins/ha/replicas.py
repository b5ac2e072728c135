"""Replicas of one broker in one process, with a name server and a coordinator, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
from anyio.abc import TaskGroup, TaskStatus

from tests.kernel.pulling import until
from tests.plugins.ha.gateway import Gateway, running_gateway
from tests.plugins.ha.pairs import ENABLED, SMALL
from verniermq.kernel import Broker
from verniermq.plugins.ha.failover import Failover
from verniermq.testing import running_broker


def failover(broker: Broker) -> Failover:
    found = broker.host.active["ha"].instance.failover
    assert isinstance(found, Failover)
    return found


@attrs.define(eq=False)
class Replicas:
    """Three brokers called ``a``, and a fourth one that only carries the name server."""

    folder: Path
    etcd: Gateway
    names: Broker
    settings: dict[str, Any]
    tasks: TaskGroup
    brokers: dict[int, Broker] = attrs.field(factory=dict)
    _ends: dict[int, tuple[anyio.Event, anyio.Event]] = attrs.field(factory=dict)

    @property
    def namesrv(self) -> str:
        return self.names.name_servers[0]

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            chosen = {
                **SMALL, "broker__name": "a", "plugins__ha__mode": "failover", "plugins__ha__replica": number,
                "plugins__ha__metadata_interval": "100ms", "plugins__ha__ttl": "2s",
                "plugins__ha__etcd": [self.etcd.url], "broker__namesrv": [self.namesrv], **self.settings,
            }  # fmt: skip
            await self.tasks.start(self._run, number, chosen)

    async def _run(self, number: int, chosen: dict[str, Any], *, task_status: TaskStatus[None]) -> None:
        """Each in a task of its own: they end in any order."""
        wanted, done = self._ends[number] = anyio.Event(), anyio.Event()
        async with running_broker(self.folder / str(number), plugins__enable=ENABLED, **chosen) as broker:
            self.brokers[number] = broker
            task_status.started()
            await wanted.wait()
            del self.brokers[number]
        done.set()

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            wanted, done = self._ends[number]
            wanted.set()
            await done.wait()

    def masters(self) -> list[int]:
        return [number for number, broker in self.brokers.items() if failover(broker).members.leader is not None]

    async def master(self, *among: int) -> int:
        """Wait until there is exactly one, and it can take messages."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [number for number in self.masters() if not among or number in among]
            return len(found) == 1 and not self.brokers[found[0]].store.refusals

        await until(is_there)
        return found[0]

    def in_sync(self) -> list[int]:
        return [number for number, _ in self.etcd.keys().get("state", {"in_sync": []})["in_sync"]]

    async def all_in_sync(self) -> None:
        await until(lambda: self.in_sync() == sorted(self.brokers))


@asynccontextmanager
async def running_replicas(folder: Path, count: int = 3, **settings: Any) -> AsyncIterator[Replicas]:
    async with (
        running_gateway() as etcd,
        running_broker(folder / "names", broker__name="names") as names,
        anyio.create_task_group() as tasks,
    ):
        replicas = Replicas(folder, etcd, names, {"plugins__ha__replicas": count, **settings}, tasks)
        try:
            yield replicas
        finally:
            await replicas.stop(*list(replicas.brokers))
