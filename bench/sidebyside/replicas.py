"""Three replicas of one broker name, and what chooses their master: an etcd for ours, its controller for Apache's."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import orjson

from sidebyside.brokers import ITS_OWN
from tests.campaign.etcd import EtcdCluster
from tests.campaign.replicas import Group
from tests.interop.apache import OPENED, ApacheBroker
from tests.interop.processes import LOOPBACK, ServerProcess, free_ports
from tests.interop.toolchains import java_command, server_classpath
from verniermq.kernel import Command, RequestCode
from verniermq.plugins.ha.etcd import Etcd
from verniermq.protocol.peers import Peers
from verniermq.testing import BrokerProcess

COUNT = 3
NAME = "a"
GET_METADATA_INFO, GET_REPLICA_INFO, ELECT_MASTER = 1005, 1004, 1002


class Replicas(Protocol):
    namesrv: str

    def open(self) -> None:
        """Start all."""

    def close(self) -> None: ...

    def pid(self, address: str) -> int:
        """Of the broker at an address."""

    def kill(self, address: str) -> None: ...

    def start(self, address: str) -> None: ...

    async def are_in_sync(self, peers: Peers) -> bool:
        """Whether all of them count."""

    async def switch(self, peers: Peers, master: str) -> None:
        """Ask for another master, as an operator does."""


class OurReplicas:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.namesrv = ""

    def open(self) -> None:
        names = BrokerProcess(self._folder / "names", ["--set=broker.name=names"])
        names.start()
        self._stack.callback(names.kill)
        self.namesrv = names.namesrv
        cluster = self._stack.enter_context(EtcdCluster(self._folder, 3))
        self._etcd = Etcd(cluster.urls, "DefaultCluster", NAME)
        # All settings are the defaults, but for what the campaign needs.
        self._group = Group(self._folder, cluster, names, COUNT, settings={"plugins.ha.ttl": "3s"})
        self._stack.callback(self._group.end)
        self._group.make(random.Random(1))
        for number in self._group.replicas:
            self._group.start(number)

    def close(self) -> None:
        self._stack.close()

    def _at(self, address: str) -> BrokerProcess:
        return next(process for process in self._group.replicas.values() if process.broker == address)

    def pid(self, address: str) -> int:
        return self._at(address).pid

    def kill(self, address: str) -> None:
        self._at(address).kill()

    def start(self, address: str) -> None:
        self._at(address).start()

    async def are_in_sync(self, peers: Peers) -> bool:
        found = await self._etcd.read()
        return found.state is not None and len(found.state.in_sync) == COUNT and found.state.master in found.live

    async def switch(self, peers: Peers, master: str) -> None:
        to = next(number for number, process in self._group.replicas.items() if process.broker != master)
        await peers.ask(master, Command.request(RequestCode.SWITCH_MASTER, {"replica": str(to)}))


class ApacheReplicas:
    """Its brokers with their defaults, but for ``allAckInSyncStateSet``: without it acknowledged messages are lost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port = free_ports()
        self._controller = f"{LOOPBACK}:{port}"
        self._process: ServerProcess | None = None
        self._brokers: list[ApacheBroker] = []
        self.namesrv = ""

    def open(self) -> None:
        home = self._folder / "controller"
        home.mkdir(parents=True)
        conf = home / "controller.conf"
        conf.write_text(
            f"controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-{self._controller}\ncontrollerDLegerSelfId=n0\n"
            f"controllerStorePath={home / 'store'}\n"
        )
        options = (*OPENED, f"-Drocketmq.home.dir={home}", "-cp", server_classpath())
        main = "org.apache.rocketmq.controller.ControllerStartup"
        command = (*java_command(*options, main, home=home, jvm=ITS_OWN.namesrv), "-c", str(conf))
        self._process = ServerProcess("controller", command, home / "log", cwd=home)
        properties = {
            "brokerName": NAME, "enableControllerMode": "true", "controllerAddr": self._controller,
            "allAckInSyncStateSet": "true", "brokerId": "-1",
        }  # fmt: skip
        scale = ITS_OWN._replace(broker=("-server", "-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=1g"))
        for number in range(COUNT):
            folder = self._folder / f"apache{number}"
            folder.mkdir()
            broker = ApacheBroker(folder, properties=properties, scale=scale)
            self._brokers.append(broker)
            if number == 0:
                broker.start_namesrv()
                self.namesrv = broker.namesrv
            broker.namesrv = self.namesrv
            broker.launch()

    def close(self) -> None:
        for broker in self._brokers:
            broker.close()
        if self._process is not None:
            self._process.kill()

    def _at(self, address: str) -> ApacheBroker:
        return next(broker for broker in self._brokers if broker.broker == address)

    def pid(self, address: str) -> int:
        return self._at(address).pids[-1]

    def kill(self, address: str) -> None:
        self._at(address).kill()

    def start(self, address: str) -> None:
        self._at(address).launch()

    async def are_in_sync(self, peers: Peers) -> bool:
        answer = await peers.ask(
            self._controller, Command.request(GET_REPLICA_INFO, {"brokerName": NAME}), fine=range(1 << 16)
        )
        if answer.code or not answer.body:
            return False
        return len(orjson.loads(bytes(answer.body))["syncStateSet"]) == COUNT

    async def switch(self, peers: Peers, master: str) -> None:
        answer = await peers.ask(self._controller, Command.request(GET_REPLICA_INFO, {"brokerName": NAME}))
        current = int(answer.ext["masterBrokerId"])
        to = next(number for number in range(1, COUNT + 1) if number != current)
        fields = {
            "clusterName": "DefaultCluster", "brokerName": NAME, "brokerId": str(to), "designateElect": "true",
            "invokeTime": "0",
        }  # fmt: skip
        await peers.ask(self._controller, Command.request(ELECT_MASTER, fields))


def hang(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
