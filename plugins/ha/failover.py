"""The failover mode of ``ha``: a replica among others, with its port and what it refuses while it is not the master."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from verniermq.kernel import (
    Answer,
    Appended,
    Command,
    Connection,
    Context,
    Handler,
    PluginError,
    RemotingError,
    RequestRefused,
    ResponseCode,
    Role,
)
from verniermq.plugins.ha import epochfile
from verniermq.plugins.ha.coordinator import Coordinator, CoordinatorTrouble
from verniermq.plugins.ha.door import may_have_the_log
from verniermq.plugins.ha.etcd import Etcd
from verniermq.plugins.ha.identity import incarnation
from verniermq.plugins.ha.metadata import Metadata
from verniermq.plugins.ha.replica import Members
from verniermq.plugins.ha.settings import Config, networks
from verniermq.protocol.peers import Peers

logger = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 2.0


class Failover:
    """What the plugin does in this mode. ``coordinator`` is etcd, unless another is given."""

    def __init__(self, broker: Context, config: Config, peers: Peers, coordinator: Coordinator | None = None) -> None:
        _check(broker, config)
        self._broker, self._config = broker, config
        self._folder = Path(broker.configuration.store.path)
        self._networks = networks(config.slaves)
        self._metadata = Metadata(broker, peers)
        self._server: asyncio.Server | None = None
        me = (config.replica, incarnation(self._folder, config.replica))
        self.members = Members(broker, config, coordinator or _etcd(broker, config), me)
        self._started = anyio.Event()
        if (self._folder / epochfile.NAME).exists():
            broker.store.dispatch_limit = 0  # up to where it was confirmed; before the first election, all was

    # --- start and stop --------------------------------------------------------------------

    def store_opened(self) -> None:
        store = self._broker.store
        if store.dispatch_limit is None:
            store.dispatch_limit = store.end
        self.members.epochs = epochfile.load(self._folder, store.end)
        store.refuse_writes(f"broker {self._broker.name!r} has no master yet", "ha")
        self._broker.take_role(Role(self._config.replica))

    async def broker_started(self) -> None:
        settings = self._broker.configuration.broker
        port = self._config.port or (settings.port + 1 if settings.port else 0)
        try:
            self._server = await asyncio.start_server(self._greet, settings.host, port)
        except OSError as error:
            raise PluginError(
                f"replicas cannot be served on {settings.host}:{port}: {error.strerror or error}; set port in it",
                "ha",
            ) from error
        host = f"[{self._broker.host}]" if ":" in self._broker.host else self._broker.host
        self.members.ha_address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        self._started.set()

    async def run(self) -> None:
        await self._started.wait()
        await self.members.run()

    async def copy_tables(self) -> None:
        """While it follows: topics, groups and offsets of the master."""
        while True:
            master = self._master_to_copy()
            if master:
                try:
                    await self._metadata.copy(master, self._reached)
                except RemotingError as error:
                    logger.info("topics, groups and offsets are not copied: %s", error)
            await self._broker.clock.sleep(self._config.metadata_interval)

    def _master_to_copy(self) -> str:
        snapshot, following = self.members.snapshot, self.members.following
        if following is None or not following.connected or snapshot is None or snapshot.state is None:
            return ""
        live = snapshot.live.get(snapshot.state.master)
        return "" if live is None else live.address

    async def _reached(self, offset: int) -> bool:
        """Whether what a table tells of is in our log too, up to where the master's ended when it told it."""
        with anyio.move_on_after(self._config.metadata_interval):
            while self._broker.store.copied_end < offset:
                await self._broker.clock.sleep(0.05)
        return self._broker.store.copied_end >= offset

    async def broker_stopping(self) -> None:
        if self._server is not None:
            self._server.close()
        leader = self.members.leader
        if leader is not None:
            leader.end()
        with anyio.move_on_after(LEAVE_SECONDS):
            try:
                await self.members.leave()
            except CoordinatorTrouble as error:
                logger.info("could not say goodbye: %s", error)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("peername")[:2]
        try:
            if may_have_the_log(self._networks, host):
                await self.members.serve(reader, writer, f"{host}:{port}")
            else:
                logger.error(
                    "%s:%d wants a copy of the log and is no replica; if it shall be one, put its address into slaves "
                    "in [plugins.ha]", host, port,
                )  # fmt: skip
        finally:
            writer.transport.abort()

    # --- what only a master does -----------------------------------------------------------

    def confirm_append(self, appended: Appended) -> Awaitable[ResponseCode]:
        leader = self.members.leader
        if leader is None:
            answer: asyncio.Future[ResponseCode] = asyncio.get_running_loop().create_future()
            answer.set_result(ResponseCode.FLUSH_SLAVE_TIMEOUT)
            return answer
        return leader.wait(appended.end)

    def only_master(self, refusals: Mapping[int, Any]) -> Mapping[int, Any]:
        """The same refusals, while this replica is not the master."""
        return {code: partial(self._unless_master, refuse) for code, refuse in refusals.items()}

    def _unless_master(self, refuse: Any, handler: Handler, request: Command, connection: Connection) -> Answer:
        if self._broker.role.is_master:
            return handler(request, connection)  # type: ignore[return-value]  # or what to await
        return refuse(handler, request, connection)  # type: ignore[no-any-return]

    # --- for operators ---------------------------------------------------------------------

    def ha_status(self) -> dict[str, Any]:
        """RocketMQ's ``HARuntimeInfo``."""
        members = self.members
        leader, following = members.leader, members.following
        slaves = [] if leader is None else leader.status()
        status: dict[str, Any] = {
            "haConnectionInfo": slaves,
            "inSyncSlaveNums": sum(slave["inSync"] for slave in slaves),
        }
        if leader is None:
            status["haClientRuntimeInfo"] = {} if following is None else following.status()
        return {**status, "master": leader is not None, "masterCommitLogMaxOffset": self._broker.store.end}

    def runtime_info(self) -> Mapping[str, str]:
        members = self.members
        leader, following = members.leader, members.following
        return {
            "haTerm": str(members.term),
            "haReplica": str(members.me[0]),
            "haConfirmedOffset": str(self._broker.store.dispatch_limit or 0),
            "haInSync": "" if leader is None else ",".join(str(number) for number, _ in sorted(leader.state.in_sync)),
            "haFollows": "" if following is None else following.address,
            "haProblem": members.trouble or ("" if following is None else following.problem),
        }


def no_master(name: str) -> RequestRefused:
    return RequestRefused(
        f"this broker is no master of {name!r} now; ask the name server for the route",
        ResponseCode.SERVICE_NOT_AVAILABLE,
    )


def _check(broker: Context, config: Config) -> None:
    settings = broker.configuration.broker
    why = ""
    if settings.id:
        why = f"[broker] id = {settings.id} does not go with it: brokers get their ids by election; set replica instead"
    elif not 1 <= config.replica <= config.replicas:
        why = f"replica = {config.replica}: give each of the {config.replicas} replicas a number from 1 on, for ever"
    elif config.least_in_sync > config.replicas:
        why = f"min_in_sync = {config.min_in_sync} is more than replicas = {config.replicas}"
    elif not config.etcd:
        why = 'it needs a coordinator: name the servers of etcd, etcd = ["http://10.0.0.1:2379"]'
    elif not settings.namesrv:
        why = "clients find the master through name servers: put their addresses into [broker] namesrv"
    if why:
        raise PluginError(f'[plugins.ha] mode = "failover": {why}', "ha")


def _etcd(broker: Context, config: Config) -> Etcd:
    tls = None
    if any(endpoint.startswith("https:") for endpoint in config.etcd):
        try:
            tls = ssl.create_default_context(cafile=config.etcd_ca or None)
            if config.etcd_certificate:
                tls.load_cert_chain(config.etcd_certificate)
        except OSError as error:
            raise PluginError(f"[plugins.ha] etcd_ca or etcd_certificate cannot be used: {error}", "ha") from error
    return Etcd(
        config.etcd, broker.cluster, broker.name, ttl=round(config.ttl), user=config.etcd_user,
        password=config.etcd_password, tls=tls,
    )  # fmt: skip
