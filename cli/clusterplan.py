"""Which brokers a cluster on one machine consists of, and how each of them is started.

::

    number   name       id   port              folder
    1        broker-a   0    --port            DATA/broker-a-0
    2        broker-a   1    --port + 10       DATA/broker-a-1     with --replicas 2
    3        broker-b   0    --port + 20       DATA/broker-b-0

With ``--etcd`` the brokers of one name elect their master; their numbers are those of replicas, from 1 on.

Ten ports for each: a broker listens on port - 2 for old Java clients too, and a master on port + 1 for its slaves.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from string import ascii_lowercase
from typing import Final

import attrs

from verniermq.cli.options import configuration_from
from verniermq.kernel.config import Configuration

PORTS_EACH: Final = 10
MOST_BROKERS: Final = len(ascii_lowercase)

NUMBER: Final = "{number}"
"""In a value of ``--set``: the broker's number, for what must not be the same twice."""


@attrs.frozen
class ClusterPlan:
    """What was asked for."""

    brokers: int
    replicas: int
    data: Path
    port: int
    config: Path | None = None
    settings: tuple[str, ...] = ()
    etcd: tuple[str, ...] = ()
    namesrv: str = ""
    """The address of the name server, once it listens."""

    def common(self) -> Configuration:
        """What all of them share, as the first one reads it.

        Raises:
            ConfigError: it cannot be read.
        """
        return configuration_from(self.config, None, self.settings_of(1))

    def settings_of(self, number: int) -> tuple[str, ...]:
        return tuple(text.replace(NUMBER, str(number)) for text in self.settings)

    def members(self) -> list[ClusterMember]:
        """Every broker, a master before its slaves."""
        return [
            ClusterMember(self, number * self.replicas + broker_id + 1, f"broker-{ascii_lowercase[number]}", broker_id)
            for number in range(self.brokers)
            for broker_id in range(self.replicas)
        ]


@attrs.frozen
class ClusterMember:
    """One broker of a cluster."""

    plan: ClusterPlan
    number: int
    name: str
    broker_id: int

    @property
    def role(self) -> str:
        if self.plan.etcd:
            return "replica"
        return "slave" if self.broker_id else "master"

    @property
    def title(self) -> str:
        return f"{self.name}-{self.broker_id + 1 if self.plan.etcd else self.broker_id}"

    @property
    def folder(self) -> Path:
        return self.plan.data / self.title

    @property
    def log(self) -> Path:
        return self.plan.data / f"{self.title}.log"

    @property
    def ready_file(self) -> Path:
        return self.plan.data / f".{self.title}.ready"

    @property
    def port(self) -> int:
        return self.plan.port + (self.number - 1) * PORTS_EACH if self.plan.port else 0

    def settings(self) -> tuple[str, ...]:
        """What goes over the file; our own last, since they make it this broker and no other."""
        given = self.plan.settings_of(self.number)
        own = (
            f"broker.name={self.name}", f"broker.id={0 if self.plan.etcd else self.broker_id}",
            f"broker.port={self.port}", f"broker.namesrv={self.plan.namesrv}", f"store.path={self.folder}",
        )  # fmt: skip
        if self.plan.replicas == 1:
            return (*given, *own)
        enabled = configuration_from(self.plan.config, None, given).plugins.enable
        with_ha = ",".join(dict.fromkeys([*enabled, "ha"]))
        return (*given, *own, f"plugins.enable={with_ha}", *self._ha_settings())

    def _ha_settings(self) -> list[str]:
        if not self.plan.etcd:
            return [f"plugins.ha.role={'slave' if self.broker_id else 'sync_master'}"]
        return [
            "plugins.ha.mode=failover", f"plugins.ha.replica={self.broker_id + 1}",
            f"plugins.ha.replicas={self.plan.replicas}", f"plugins.ha.etcd={','.join(self.plan.etcd)}",
        ]  # fmt: skip

    def configuration(self) -> Configuration:
        """
        Raises:
            ConfigError: something that was given does not fit.
        """
        return configuration_from(self.plan.config, None, self.settings())

    def command(self) -> list[str]:
        config = [] if self.plan.config is None else ["--config", str(self.plan.config)]
        settings = [part for text in self.settings() for part in ("--set", text)]
        return [sys.executable, "-m", "verniermq.cli", "broker", *config, *settings]

    def command_line(self) -> str:
        """To start it alone, by hand."""
        return shlex.join(self.command())
