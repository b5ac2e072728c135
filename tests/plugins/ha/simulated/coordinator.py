"""The coordinator of a simulation: what etcd keeps, without HTTP, and with answers and requests that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from tests.plugins.ha.gateway import Gateway
from tests.plugins.ha.simulated.world import NODE, Loop
from verniermq.plugins.ha import failover
from verniermq.plugins.ha.coordinator import CoordinatorTrouble
from verniermq.plugins.ha.etcd import CALL_SECONDS, WATCH_SECONDS, Etcd, EtcdRefused

HOST = "etcd"


class SimulatedEtcd(Etcd):
    """Asks the gateway as if it were over the simulation's network."""

    def __init__(self, gateway: Gateway, broker: str, ttl: int) -> None:
        super().__init__([HOST], "c", broker, ttl=ttl)
        self._gateway = gateway

    async def _ask(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        loop, node, gateway = _loop(), NODE.get(), self._gateway
        await anyio.sleep(loop.latency())
        if not node.alive or gateway.down or not loop.hears(node.host, HOST) or gateway.lose_request(path):
            raise await self._no_answer()
        status, answer = gateway.call(path, request)
        await anyio.sleep(loop.latency())
        if not loop.hears(HOST, node.host) or gateway.lose_answer(path):
            raise await self._no_answer()
        if status != 200:
            raise EtcdRefused(HOST, path, answer["code"], answer["error"])
        return dict(answer)

    async def _no_answer(self) -> CoordinatorTrouble:
        await anyio.sleep(CALL_SECONDS if not self._gateway.down else 0.001)
        return CoordinatorTrouble("etcd does not answer")

    async def changed(self) -> None:
        loop, node, gateway = _loop(), NODE.get(), self._gateway
        await anyio.sleep(0.001 + loop.latency())
        deadline = loop.time() + WATCH_SECONDS
        while loop.time() < deadline:
            if gateway.down or not node.alive:
                raise CoordinatorTrouble("etcd does not answer")
            changed = gateway.changed
            gateway.expire()
            if gateway.revision > self._revision and loop.hears(HOST, node.host):
                return
            with anyio.move_on_after(0.2):
                await changed.wait()


def _loop() -> Loop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    return loop


@asynccontextmanager
async def coordinated_by(gateway: Gateway) -> AsyncIterator[None]:
    """Brokers that are started meanwhile agree through this one."""
    before = failover._etcd
    failover._etcd = lambda broker, config: SimulatedEtcd(gateway, broker.name, int(config.ttl))  # type: ignore[assignment]
    try:
        yield
    finally:
        failover._etcd = before
