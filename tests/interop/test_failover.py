"""Brokers that choose their master through a real etcd."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from tests.campaign import failover, network
from tests.campaign.etcd import EtcdCluster
from tests.campaign.outcome import Outcome, Skipped
from tests.plugins.ha.coordinators import check_coordinator, check_watches, state
from verniermq.plugins.ha.coordinator import CoordinatorTrouble
from verniermq.plugins.ha.etcd import Etcd, EtcdRefused

SCRIPT = Path(__file__).with_name("namespaces.sh")
LEASE_SECONDS = 2
BLOWS = ("cut master off", "power cut", "one way, all to master", "all at once")
T = TypeVar("T")


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    subprocess.run([str(SCRIPT)], check=True, timeout=300)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path, 3) as cluster:
        yield cluster


def test_etcd_does_what_a_coordinator_must(cluster: EtcdCluster) -> None:
    anyio.run(check_coordinator, lambda number: Etcd(cluster.urls, "c", "b", ttl=LEASE_SECONDS))
    anyio.run(check_watches, lambda number: Etcd(cluster.urls, "c", "b2", ttl=LEASE_SECONDS))


def test_an_etcd_that_lost_a_server_goes_on(cluster: EtcdCluster) -> None:
    async def work() -> None:
        etcd = Etcd(cluster.urls, "c", "b")
        revision = await etcd.change(state(1, 1), 0)
        cluster.servers[0].kill()
        with anyio.fail_after(60):
            assert (await _patiently(etcd.read)).state == state(1, 1)
            await _patiently(partial(etcd.change, state(2, 2), revision))
            assert (await _patiently(etcd.read)).state == state(2, 2)

    anyio.run(work)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except CoordinatorTrouble:
            await anyio.sleep(0.1)


def test_a_user_and_a_password_are_shown_to_etcd(cluster: EtcdCluster) -> None:
    async def work() -> None:
        stranger = Etcd(cluster.urls, "c", "b")
        await stranger._call("auth/user/add", {"name": "root", "password": "secret"})
        await stranger._call("auth/role/add", {"name": "root"})
        await stranger._call("auth/user/grant", {"user": "root", "role": "root"})
        await stranger._call("auth/enable", {})

        known = Etcd(cluster.urls, "c", "b", user="root", password="secret")
        assert await known.change(state(1, 1), 0)
        with pytest.raises(EtcdRefused):
            await stranger.read()
        with pytest.raises(EtcdRefused):
            await Etcd(cluster.urls, "c", "b", user="root", password="wrong").read()

    anyio.run(work)


@pytest.mark.timeout(600)
def test_what_was_acknowledged_survives_kills_of_brokers_and_etcd(tmp_path: Path) -> None:
    passes(anyio.run(failover.live, 12, tmp_path, 4, 3))


@pytest.mark.timeout(600)
def test_what_was_acknowledged_survives_cuts_of_the_network_full_disks_and_lost_tails(tmp_path: Path) -> None:
    try:
        outcome = network.run(1, tmp_path, "--blows", *BLOWS)
    except Skipped as why:
        pytest.skip(str(why))
    passes(outcome)


def passes(outcome: Outcome) -> None:
    assert [f"{failure.category}: {failure.text}" for failure in outcome.failures] == []
    assert outcome.checked > 0
