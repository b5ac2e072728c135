"""Brokers that choose their master through a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.plugins.ha.coordinators import check_coordinator, check_watches, live, state
from verniermq.contrib.zookeeper import Config
from verniermq.contrib.zookeeper.coordinator import ZooKeeper
from verniermq.plugins.ha.coordinator import CoordinatorTrouble

from .zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(600)

TTL = 2.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


def test_zookeeper_does_what_a_coordinator_must(server: ZooKeeperServer) -> None:
    config = Config(servers=(server.address,))
    anyio.run(check_coordinator, lambda number: ZooKeeper(config, "c/1", "b", ttl=TTL))
    anyio.run(check_watches, lambda number: ZooKeeper(config, "c/1", "b2", ttl=TTL))


def test_a_hung_loop_is_noticed_although_kazoo_has_a_thread(server: ZooKeeperServer) -> None:
    async def work() -> None:
        config = Config(servers=(server.address,))
        hung, watching = (ZooKeeper(config, "c", "hung", ttl=TTL) for _ in range(2))
        await hung.announce(1, live(1))
        assert set((await watching.read()).live) == {1}
        with anyio.fail_after(60):
            while (await watching.read()).live:
                await watching.changed()
        assert not await hung.keep_alive()
        await watching.leave()

    anyio.run(work)


def test_what_a_user_stored_is_shown_to_nobody_else(server: ZooKeeperServer) -> None:
    async def work() -> None:
        known = ZooKeeper(Config(servers=(server.address,), user="mq", password="secret"), "secured", "b", ttl=TTL)
        assert await known.change(state(1, 1), 0)
        stranger = ZooKeeper(Config(servers=(server.address,), user="mq", password="wrong"), "secured", "b", ttl=TTL)
        with pytest.raises(CoordinatorTrouble, match="NoAuth"):
            await stranger.read()
        for one in (known, stranger):
            await one.leave()

    anyio.run(work)


def test_a_zookeeper_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(CoordinatorTrouble, match=r"ZooKeeper at 127.0.0.1:1 does not answer"):
            await ZooKeeper(Config(servers=("127.0.0.1:1",)), "c", "b", ttl=TTL).read()

    anyio.run(work)
