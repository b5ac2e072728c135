"""Where topics live: the embedded name server, and registration with outside ones (RocketMQ: ``NameServer``).

With ``[broker] namesrv = []`` the broker carries its own name server, on ``[plugins.namesrv] port``; other
brokers may register there too, if ``peers`` takes them. With addresses in it, the broker registers with those and
carries none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import anyio
import attrs

from verniermq.kernel import Context, Declaration, Registry, Role, TopicConfig, hookimpl, setting
from verniermq.plugins.namesrv.admission import SHORTEST_SECRET, BrokerAdmission, networks
from verniermq.plugins.namesrv.registrar import CALL_TIMEOUT, INTERVAL_SECONDS, Registrar, master_found, queue_mappings
from verniermq.plugins.namesrv.routes import NEVER, LiveBroker
from verniermq.plugins.namesrv.server import NameServer

logger = logging.getLogger(__name__)

TELL_SECONDS: Final = 3.0
"""How long the answer to whoever creates a topic waits for name servers."""


def _are_addresses(texts: Iterable[str]) -> str | None:
    try:
        networks(texts)
    except ValueError:
        return 'addresses and networks, such as "10.0.0.5", "10.0.0.0/8" or "fd00::/8"'
    return None


def _not_empty(text: str) -> str | None:
    return None if text else "a text that is not empty"


def _secret(text: str) -> str | None:
    return None if not text or len(text) >= SHORTEST_SECRET else f"{SHORTEST_SECRET} characters or more"


@attrs.frozen
class Config:
    """``[plugins.namesrv]``"""

    host: str = setting("127.0.0.1", "The address that the embedded name server listens on.", check=_not_empty)
    port: int = setting(9876, "Its port; 0 takes any that is free.", at_least=0, at_most=65535)
    brokers: tuple[str, ...] = setting(
        (), "Where other brokers may register from; with none and no secret, from this machine.", check=_are_addresses
    )
    secret: str = setting(
        "", "What brokers prove themselves with to a name server, the same on both sides.", secret=True, check=_secret
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Carries a name server, or registers the broker with outside ones.",
        hookspecs=(queue_mappings, master_found),
        # A broker whose name server could not listen would run where nobody finds it: better not to start.
        on_failure="closed",
    )
    config: Config
    broker: Context
    embedded: NameServer | None = attrs.field(default=None, init=False)
    _registrars: list[Registrar] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        broker = self.broker
        addresses = broker.configuration.broker.namesrv
        self._registrars = [Registrar(broker, address, self._secret) for address in addresses]
        if not addresses:
            self.embedded = NameServer(broker.clock, broker.tls, self._peers(self.config), broker.guard)

    def _secret(self) -> str:
        return self.config.secret

    def _peers(self, config: Config) -> BrokerAdmission:
        return BrokerAdmission(config.brokers, config.secret, self.broker.clock.now_ms)

    @hookimpl
    def settings_changed(self, settings: Config) -> None:
        if (settings.host, settings.port) != (self.config.host, self.config.port):
            logger.warning("[plugins.namesrv] host and port changed; they take effect at the next start")
        self.config = settings
        if self.embedded is not None:
            self.embedded.peers = self._peers(settings)

    def setup(self, registry: Registry) -> None:
        registry.check("a name server knows the broker", self._why_unknown)
        if self.embedded is not None:
            registry.service("expire brokers", self.embedded.run)
            registry.service("stay registered", self._stay_registered)
        for registrar in self._registrars:
            registry.service(f"register with {registrar.address}", registrar.run)

    def _why_unknown(self) -> str | None:
        """One that knows it is enough: clients ask the others too."""
        if self.embedded is not None:
            return None if self.embedded.port else "the embedded name server does not listen yet"
        troubles = [f"{registrar.address}: {registrar.trouble}" for registrar in self._registrars if registrar.trouble]
        return "; ".join(troubles) if len(troubles) == len(self._registrars) else None

    @hookimpl
    async def broker_started(self) -> None:
        broker = self.broker
        for registrar in self._registrars:
            registrar.start()
        if self.embedded is not None:
            self._register_here(self.embedded)
            await self.embedded.start(self.config.host, self.config.port)
            broker.name_servers[:] = [self._address(self.config.host, self.embedded.port)]
        else:
            broker.name_servers[:] = [registrar.address for registrar in self._registrars]

    def _address(self, host: str, port: int) -> str:
        """What clients are told; they cannot connect to "everywhere"."""
        host = self.broker.host if host in ("0.0.0.0", "::") else host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _register_here(self, server: NameServer) -> None:
        """Our own broker needs no socket to reach its own table, and lives as long as it."""
        broker, settings, role = self.broker, self.broker.configuration.broker, self.broker.role
        me = LiveBroker(
            settings.cluster, settings.name, role.broker_id, broker.address, role.ha_address, NEVER,
            broker.clock.monotonic(),
            broker.topics.version.as_json(),
        )  # fmt: skip
        server.table.register_own(me, broker.topics, broker.hooks.ask(queue_mappings) or {})

    async def _stay_registered(self) -> None:
        """Nobody can take our entry away; should it get lost all the same, it is there again within half a minute."""
        while True:
            await self.broker.clock.sleep(INTERVAL_SECONDS)
            if self.embedded is not None and self.embedded.port:
                self._register_here(self.embedded)

    @hookimpl
    def topics_changed(self, changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
        for registrar in self._registrars:
            registrar.topics_changed(changed)
        if self.embedded is not None:
            mappings = self.broker.hooks.ask(queue_mappings) or {}
            self.embedded.table.put_topics(self.broker.name, changed, mappings)
            for topic in deleted:
                self.embedded.table.drop_topic(topic, [self.broker.name])

    @hookimpl(optionalhook=True)
    async def topics_told(self) -> None:
        with anyio.move_on_after(TELL_SECONDS):
            for registrar in self._registrars:
                await registrar.told()

    @hookimpl
    def role_changed(self, role: Role) -> None:
        for registrar in self._registrars:
            registrar.register_again()
        if self.embedded is not None and self.embedded.port:
            self._register_here(self.embedded)

    @hookimpl
    async def broker_stopping(self) -> None:
        with anyio.move_on_after(CALL_TIMEOUT):
            for registrar in self._registrars:
                await registrar.unregister()
        if self.embedded is not None:
            await self.embedded.stop()
