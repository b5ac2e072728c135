"""The failover mode of ``ha``: a replica among others, with its port and what it refuses while it is not the master."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import ssl
from collections.abc import Awaitable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs
import orjson

from verniermq.kernel import (
    Answer,
    Appended,
    Command,
    Connection,
    Context,
    Handler,
    PluginError,
    RemotingError,
    RequestCode,
    RequestRefused,
    ResponseCode,
    Role,
    StoreNotWritable,
)
from verniermq.plugins.ha import epochfile, identity
from verniermq.plugins.ha.controller import NOBODY, Controller
from verniermq.plugins.ha.coordinator import Coordinator, CoordinatorTrouble, Snapshot, coordinator_for
from verniermq.plugins.ha.door import Door, asking_tls, come_from, serving_tls
from verniermq.plugins.ha.etcd import Etcd
from verniermq.plugins.ha.identity import incarnation
from verniermq.plugins.ha.metadata import Metadata
from verniermq.plugins.ha.replica import Members
from verniermq.plugins.ha.settings import Config
from verniermq.protocol.peers import Peers
from verniermq.protocol.replicas import NotifyRoleChanged, SwitchMaster

logger = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 2.0
FORWARD_SECONDS: Final = 5.0
FOLLOWS_SECONDS: Final = 0.1
"""How often a replica looks whether it follows another master."""

PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE)
"""What consumers wait for: they had better find the new master themselves."""


class Failover:
    """What the plugin does in this mode. ``coordinator`` is what the settings say, unless one is given."""

    def __init__(self, broker: Context, config: Config, peers: Peers, coordinator: Coordinator | None = None) -> None:
        _check(broker, config)
        self._broker, self._config = broker, config
        self._folder = Path(broker.configuration.store.path)
        self._door = Door(broker, config)
        self._tls = serving_tls(broker, config)
        asking_tls(broker, config)  # needed later, and better missed now
        self._metadata = Metadata(broker, peers)
        self._server: asyncio.Server | None = None
        self._me = (config.replica, incarnation(self._folder, config.replica))
        self._coordinator = coordinator
        self.members: Members
        """From :meth:`choose_coordinator` on."""
        self._controller: Controller | None = None
        self._peers = peers
        self._started = anyio.Event()
        self._holding: anyio.Event | None = None
        """While a switch is under way: set when it is over."""
        self._successor = ""
        """Who was made the master by the last switch."""
        self._forwards_until = 0.0
        if (self._folder / epochfile.NAME).exists():
            broker.store.dispatch_limit = 0  # up to where it was confirmed; before the first election, all was

    # --- start and stop --------------------------------------------------------------------

    def choose_coordinator(self) -> None:
        """
        Raises:
            PluginError: there is none.
        """
        broker, config = self._broker, self._config
        found = self._coordinator
        if config.controller:
            self.members = self._at_controller()
            return
        if config.etcd:
            found = found or _etcd(broker, config)
        found = found or broker.hooks.ask(coordinator_for, broker.cluster, broker.name, config.ttl)
        if found is None:
            raise PluginError(
                '[plugins.ha] mode = "failover": it needs a coordinator: name the servers of etcd, etcd = '
                '["http://10.0.0.1:2379"], or Apache\'s controllers, controller = ["10.0.0.1:9878"], or enable '
                "the plugin zookeeper",
                "ha",
            )
        self.members = Members(broker, config, found, self._me)

    def _at_controller(self) -> Members:
        broker, config, folder = self._broker, self._config, self._folder
        self._controller = Controller(
            config.controller, broker.cluster, broker.name, config.replica, ttl=config.ttl,
            check_code=identity.store_name(folder), clock=broker.clock, tls=lambda: broker.outgoing_tls,
        )  # fmt: skip
        whole = identity.is_whole(folder)
        members = Members(broker, config, self._controller, (config.replica, NOBODY), whole=whole)
        members.on_whole = partial(identity.remember, folder, synced=False)
        if whole:
            members.on_whole()
        return members

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
            self._server = await asyncio.start_server(self._greet, settings.host, port, ssl=self._tls)
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
        clock = self._broker.clock
        self._metadata.on_topics = self.members.note_topics  # the master may be gone before the other tables are copied
        while True:
            master, following = self._master_to_copy(), self.members.following
            if master:
                try:
                    await self._metadata.copy(master, self._reached)
                except RemotingError as error:
                    logger.info("topics, groups and offsets are not copied: %s", error)
            due = clock.monotonic() + self._config.metadata_interval
            # Another master is asked at once: this replica may be its successor in a moment.
            while clock.monotonic() < due and (self.members.following is following or not self._master_to_copy()):
                await clock.sleep(min(FOLLOWS_SECONDS, self._config.metadata_interval))

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
        await self._remember_the_end()

    async def _remember_the_end(self) -> None:
        """At a controller: nothing more is acknowledged, and all of it is on the disk."""
        if self._controller is None or not self.members.whole:
            return
        await self.members.stop_following()
        store = self._broker.store
        if await store.durable(store.end, force=True):
            await anyio.to_thread.run_sync(partial(identity.remember, self._folder, synced=True))

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (peer := come_from(writer)) is None:
            writer.transport.abort()
            return
        host, port = peer
        try:
            if await self._door.admits(host):
                await self.members.serve(reader, writer, f"{host}:{port}")
            else:
                logger.error(
                    "%s:%d wants a copy of the log and is no replica; if it shall be one, put its address into slaves "
                    "in [plugins.ha]", host, port,
                )  # fmt: skip
        except ConnectionResetError:
            pass  # it hung up while it was greeted
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

    def _unless_master(self, refuse: Any, handler: Handler, request: Command, connection: Connection) -> Any:
        if self._holding is not None:
            return self._held(self._holding, refuse, handler, request, connection)
        if self._broker.role.is_master:
            answer = handler(request, connection)
            if isinstance(answer, Coroutine):  # one that is held waits behind its append
                return self._or_again(answer, refuse, handler, request, connection)
            return answer
        if self._forwards and request.code not in PULLS:
            return self._forward(request)
        return refuse(handler, request, connection)

    async def _or_again(
        self, answer: Awaitable[Answer], refuse: Any, handler: Handler, request: Command, connection: Connection
    ) -> Answer:
        """What waited for a plugin or the disk before its append may find that a switch has begun meanwhile."""
        try:
            return await answer
        except StoreNotWritable:
            if self._holding is None and not (self._forwards and not self._broker.role.is_master):
                raise
        if self._holding is not None:
            await self._holding.wait()
        if not self._broker.role.is_master and self._forwards:
            return await self._forward(request)
        again = handler(request, connection)
        return await again if inspect.isawaitable(again) else again

    # --- a planned switch ------------------------------------------------------------------

    @property
    def _forwards(self) -> bool:
        return bool(self._successor) and self._broker.clock.monotonic() < self._forwards_until

    async def switch(self, to: int, grace: float | None = None) -> None:
        """Make another replica the master. What is sent meanwhile waits; what is sent here later goes there.

        Args:
            grace: for so many seconds, by default ``switch_grace``

        Raises:
            RequestRefused: it cannot be done now.
        """
        if self._holding is not None:
            raise RequestRefused("a switch is under way already")
        holding = self._holding = anyio.Event()
        try:
            self._successor = await self.members.hand_over(to)
            lasts = self._config.switch_grace if grace is None else grace
            self._forwards_until = self._broker.clock.monotonic() + lasts
        finally:
            self._holding = None
            holding.set()

    async def leave(self) -> None:
        """Before a stop: make another replica the master, and forward to it until clients know."""
        leader = self.members.leader
        others = [] if leader is None else [
            (follower.ack, number) for number, follower in leader.followers.items()
            if follower.name in leader.state.in_sync
        ]  # fmt: skip
        if not others:
            return
        _, to = max(others)
        try:
            # To the last: between the end of the grace and that of the process sends would be refused.
            await self.switch(to, grace=math.inf)
        except RequestRefused as error:
            logger.warning("this master stops without a successor: %s", error)
            return
        self.members.stands = False
        logger.warning("replica %d is the master now; sends are forwarded for %g s", to, self._config.switch_grace)
        await self._broker.clock.sleep(self._config.switch_grace)

    async def _held(
        self, holding: anyio.Event, refuse: Any, handler: Handler, request: Command, connection: Connection
    ) -> Answer:
        await holding.wait()
        answer = self._unless_master(refuse, handler, request, connection)
        done: Answer = await answer if inspect.isawaitable(answer) else answer
        return done

    async def _forward(self, request: Command) -> Answer:
        """Ask the new master, which may need a moment to become it."""
        deadline = self._broker.clock.monotonic() + FORWARD_SECONDS
        while True:
            asked = Command.request(request.code, dict(request.ext), bytes(request.body))
            try:
                answer = await self._peers.ask(self._successor, asked, fine=range(1 << 31), timeout=FORWARD_SECONDS)
            except RemotingError as error:
                raise no_master(self._broker.name) from error
            late = self._broker.clock.monotonic() > deadline
            if answer.code != ResponseCode.SERVICE_NOT_AVAILABLE or late:
                return None if request.is_oneway else request.reply(
                    answer.code, dict(answer.ext), bytes(answer.body), remark=answer.remark
                )  # fmt: skip
            await self._broker.clock.sleep(0.02)

    # --- for operators ---------------------------------------------------------------------

    async def replicas(self, request: Command, connection: Connection) -> Command:
        """GET_REPLICAS: what the coordinator has, for ``verniermq ha status``."""
        try:
            snapshot = await self.members.read()
        except CoordinatorTrouble as error:
            raise RequestRefused(str(error)) from error
        term = 0 if snapshot.state is None else snapshot.state.term
        told = as_json(snapshot, self._broker.name, self._config.replicas, led=self.members.is_led(term))
        return request.reply(body=orjson.dumps({**told, "problem": self.runtime_info()["haProblem"]}))

    def role_changed_there(self, request: Command, connection: Connection) -> Command:
        """NOTIFY_BROKER_ROLE_CHANGED of a controller; it is asked itself what it has."""
        if self._controller is None:
            raise RequestRefused("this broker chooses its master without a controller")
        if NotifyRoleChanged.of(request).term > self.members.term:
            self._controller.notified()
        return request.reply()

    async def switch_master(self, request: Command, connection: Connection) -> Command:
        await self.switch(SwitchMaster.of(request).replica)
        return request.reply()

    async def force_master(self, request: Command, connection: Connection) -> Command:
        try:
            state = await self.members.force()
        except CoordinatorTrouble as error:
            raise RequestRefused(str(error)) from error
        return request.reply(body=orjson.dumps({"term": state.term}))

    def epochs(self, handler: Handler, request: Command, connection: Connection) -> Command:
        """``mqadmin getBrokerEpoch``."""
        store = self._broker.store
        known = self.members.known_epochs
        ends = [*(start for _, start in known[1:]), store.end] if known else []
        body = {
            "brokerId": self._broker.broker_id,
            "brokerName": self._broker.name,
            "clusterName": self._broker.cluster,
            "epochList": [
                {"endOffset": end, "epoch": term, "startOffset": start}
                for (term, start), end in zip(known, ends, strict=True)
            ],
            "maxOffset": store.end,
            "live": attrs.asdict(self.members.live()),
        }
        return request.reply(body=orjson.dumps(body))

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
            "haProblem": members.trouble or (members.why_idle if following is None else following.problem),
        }


def as_json(snapshot: Snapshot, broker: str, replicas: int, *, led: bool) -> dict[str, Any]:
    """
    Args:
        led: whether the master is heard, which the coordinator is told a moment later.
    """
    state = snapshot.state
    elected = 0 if state is None else state.master
    live = snapshot.live.get(elected)
    led = led or (state is not None and live is not None and live.leads == state.term)
    master = elected if led else 0
    in_sync = frozenset() if state is None else state.in_sync
    known = {**snapshot.members, **snapshot.live}
    return {
        "broker": broker,
        "term": 0 if state is None else state.term,
        "master": master,
        "elected": elected,
        "replicas": [
            {
                "replica": number,
                "role": _role(number, master, snapshot),
                "address": known[number].address if number in known else "",
                "alive": number in snapshot.live,
                "inSync": number in snapshot.live and (number, snapshot.live[number].incarnation) in in_sync,
                "epoch": known[number].epoch if number in known else 0,
                "end": known[number].end if number in snapshot.live else None,
                "confirmed": known[number].confirm if number in snapshot.live else None,
            }
            for number in sorted({*range(1, replicas + 1), *known})
        ],
    }


def _role(number: int, master: int, snapshot: Snapshot) -> str:
    if number not in snapshot.live:
        return "gone" if number in snapshot.members else "never seen"
    return "master" if number == master else "slave"


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
    elif not settings.namesrv:
        why = "clients find the master through name servers: put their addresses into [broker] namesrv"
    elif config.etcd and config.controller:
        why = "etcd and controller are both set, and there is one coordinator: take one of them out"
    if why:
        raise PluginError(f'[plugins.ha] mode = "failover": {why}', "ha")


def etcd_tls(ca: str, certificate: str) -> ssl.SSLContext:
    """
    Raises:
        PluginError: a file cannot be used.
    """
    try:
        tls = ssl.create_default_context(cafile=ca or None)
        if certificate:
            tls.load_cert_chain(certificate)
    except OSError as error:
        raise PluginError(f"[plugins.ha] etcd_ca or etcd_certificate cannot be used: {error}", "ha") from error
    return tls


def _etcd(broker: Context, config: Config) -> Etcd:
    tls = None
    if any(endpoint.startswith("https:") for endpoint in config.etcd):
        tls = etcd_tls(config.etcd_ca, config.etcd_certificate)
    return Etcd(
        config.etcd, broker.cluster, broker.name, ttl=round(config.ttl), user=config.etcd_user,
        password=config.etcd_password, tls=tls,
    )  # fmt: skip
