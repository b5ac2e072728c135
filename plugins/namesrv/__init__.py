"""Where topics live: the embedded name server, and registration with outside ones (RocketMQ: ``NameServer``).

With ``[broker] namesrv = []`` the broker carries its own name server, on ``[namesrv] port``; other brokers may
register there too. With addresses in it, the broker registers with those and carries none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import anyio
import attrs

from verniermq.kernel import Broker, Declaration, NoConfig, Service, TopicConfig, hookimpl
from verniermq.plugins.namesrv.register import CALL_TIMEOUT, Registrar
from verniermq.plugins.namesrv.routes import NEVER, LiveBroker
from verniermq.plugins.namesrv.server import NameServer


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        summary="Carries a name server, or registers the broker with outside ones.",
        # A broker whose name server could not listen would run where nobody finds it: better not to start.
        on_failure="closed",
    )
    config: NoConfig
    embedded: NameServer | None = attrs.field(default=None, init=False)
    _broker: Broker = attrs.field(init=False)
    _registrars: list[Registrar] = attrs.field(factory=list, init=False)

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._broker = broker
        addresses = broker.configuration.broker.namesrv
        self._registrars = [Registrar(broker, address) for address in addresses]
        if not addresses:
            self.embedded = NameServer(broker.clock, broker.tls)

    @hookimpl
    def services(self, broker: Broker) -> Iterable[Service]:
        if self.embedded is not None:
            return [Service("expire brokers", self.embedded.run)]
        return []

    @hookimpl
    async def broker_started(self, broker: Broker) -> None:
        for registrar in self._registrars:
            broker.task_group.start_soon(registrar.run)
        if self.embedded is not None:
            settings = broker.configuration.namesrv
            self._register_here(self.embedded, broker)
            await self.embedded.start(settings.host, settings.port)
            broker.name_servers = [self._address(settings.host, self.embedded.port)]
        else:
            broker.name_servers = [registrar.address for registrar in self._registrars]

    def _address(self, host: str, port: int) -> str:
        """What clients are told; they cannot connect to "everywhere"."""
        host = self._broker.advertised.host if host in ("0.0.0.0", "::") else host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _register_here(self, server: NameServer, broker: Broker) -> None:
        """Our own broker needs no socket to reach its own table, and lives as long as it."""
        settings = broker.configuration.broker
        me = LiveBroker(
            settings.cluster, settings.name, settings.id, broker.address, "", NEVER, broker.clock.now(),
            broker.topics.version.as_json(),
        )  # fmt: skip
        server.table.register(me, broker.topics)

    @hookimpl
    def topics_changed(self, changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
        for registrar in self._registrars:
            registrar.topics_changed(changed)
        if self.embedded is not None:
            self.embedded.table.put_topics(self._broker.name, changed)
            for topic in deleted:
                self.embedded.table.drop_topic(topic, [self._broker.name])

    @hookimpl
    async def broker_stopping(self, broker: Broker) -> None:
        with anyio.move_on_after(CALL_TIMEOUT):
            for registrar in self._registrars:
                await registrar.unregister()
        if self.embedded is not None:
            await self.embedded.stop()
