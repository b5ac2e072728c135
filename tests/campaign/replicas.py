"""The replicas of one broker as processes: on the loopback address, or each on a host of its own."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import orjson

from tests.campaign.etcd import EtcdCluster
from tests.campaign.host import LOOPBACK, Host
from verniermq.plugins.ha import identity
from verniermq.testing import BrokerProcess
from verniermq.testing.ports import held_port


@attrs.define(eq=False)
class Group:
    """Started in any order; the first master is chosen when all are there."""

    folder: Path
    etcd: EtcdCluster
    names: BrokerProcess
    count: int = 3
    hosts: Mapping[int, Host] = MappingProxyType({})
    """Where each of them is, if not on this one."""
    settings: Mapping[str, Any] = MappingProxyType({})
    replicas: dict[int, BrokerProcess] = attrs.field(factory=dict)
    stopped: set[int] = attrs.field(factory=set)
    """Those that got SIGSTOP."""
    flush: str = "async"

    def make(self, chance: random.Random) -> None:
        self.flush = chance.choice(("async", "async", "sync"))
        addresses = [host.address for host in self.hosts.values()]
        for number in range(1, self.count + 1):
            host = self.hosts.get(number, LOOPBACK)
            settings = {
                "plugins.enable": '["default", "ha"]', "broker.name": "a", "broker.host": host.address,
                "plugins.ha.mode": "failover", "plugins.ha.slaves": _toml(addresses),
                "plugins.ha.replica": number, "plugins.ha.replicas": self.count, "plugins.ha.ttl": "2s",
                "plugins.ha.etcd": _toml(self.etcd.urls), "plugins.ha.metadata_interval": "500ms",
                "broker.namesrv": _toml([self.names.namesrv]), "store.segment_size": "1MiB",
                "store.max_message_size": "64KiB", "store.flush": self.flush, "log.level": "info", **self.settings,
            }  # fmt: skip
            process = self.replicas[number] = BrokerProcess(self.folder / str(number), [], within=host.within)
            settings["plugins.ha.port"] = held_port(process)
            process.arguments.extend(f"--set={key}={value}" for key, value in settings.items())

    def start(self, number: int) -> None:
        self.replicas[number].start()

    def kill(self, number: int) -> None:
        self.resume(number)
        self.replicas[number].kill()

    def pause(self, number: int) -> None:
        os.kill(self.replicas[number].pid, signal.SIGSTOP)
        self.stopped.add(number)

    def resume(self, number: int) -> None:
        if number in self.stopped:
            self.stopped.discard(number)
            os.kill(self.replicas[number].pid, signal.SIGCONT)

    def start_as_another(self, number: int, life: str) -> None:
        """As after a power cut: it may not be taken for the one that was there before."""
        path = self.replicas[number].store / identity.NAME
        path.write_bytes(orjson.dumps({"replica": number, "store": life}))
        self.start(number)

    def end(self) -> None:
        for number, process in self.replicas.items():
            self.resume(number)
            process.kill()

    def complaints(self) -> list[str]:
        """Tracebacks in their logs."""
        found = []
        for number, process in self.replicas.items():
            said = process.log.read_text(errors="replace") if process.log.exists() else ""
            at = said.find("Traceback")
            if at >= 0:
                found.append(f"a traceback in the log of replica {number}: {said[at : at + 1500]}")
        return found


def _toml(texts: list[str]) -> str:
    return str(texts).replace("'", '"')
