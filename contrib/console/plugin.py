"""In the broker: starts and stops the console. It asks the brokers of the cluster like any other client."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

import anyio.to_thread
import attrs

from verniermq.contrib.console.settings import Config, check
from verniermq.kernel import ConfigError, Context, Declaration, Registry, hookimpl

if TYPE_CHECKING:
    from verniermq.contrib.console.console import Console
    from verniermq.contrib.console.inquiry import BrokerPlace
    from verniermq.contrib.console.server import ConsoleServer
    from verniermq.plugins.http.server import TakesConnection

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="A console in the browser.",
        needs=("admin", "topics"),
        packages=("jinja2", "starlette", "uvicorn"),
        install="verniermq[console]",
    )
    config: Config
    broker: Context
    server: ConsoleServer = attrs.field(init=False)
    _config: Config = attrs.field(default=attrs.Factory(lambda self: self.config, takes_self=True), init=False)
    """With the address where it is served, by whomever."""

    def setup(self, registry: Registry) -> None:
        if not self.config.listen:
            self._config = attrs.evolve(self.config, listen=self._listen_of_http())
        check(self._config)
        # Here, so that its settings can be listed where the packages that it needs are not installed.
        from verniermq.contrib.console.server import ConsoleServer

        self.server = ConsoleServer(self.config.listen, self._console)

    @hookimpl
    async def broker_started(self) -> None:
        self.server.bind()
        self.server.start()
        logger.info("console is served address=http://%s", self.server.address or self._config.listen)

    @hookimpl
    async def broker_stopping(self) -> None:
        self.server.stop()
        await anyio.to_thread.run_sync(self.server.join)

    @hookimpl(optionalhook=True)
    def other_pages(self) -> TakesConnection | None:
        return None if self.config.listen else self.server.take

    def _listen_of_http(self) -> str:
        """
        Raises:
            ConfigError: the plugin ``http`` is not active.
        """
        http = self.broker.hooks.active.get("http")
        if http is None:
            raise ConfigError(
                "the console would be served where http serves its pages, but the plugin 'http' is not active; enable "
                "it, or set [plugins.console] listen"
            )
        listen: str = http.config.listen
        return listen

    def _console(self) -> Console:
        from verniermq.contrib.console.console import Console
        from verniermq.protocol.peers import Peers

        peers = Peers(self.broker.name_servers, tls=lambda: self.broker.outgoing_tls)
        return Console(self._config, peers, self._own)

    def _own(self) -> BrokerPlace:
        from verniermq.contrib.console.inquiry import BrokerPlace

        return BrokerPlace(self.broker.cluster, self.broker.name, self.broker.broker_id, self.broker.address)
