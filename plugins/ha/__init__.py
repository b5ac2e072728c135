"""Copies of the log on other brokers: masters and slaves as RocketMQ has them (RocketMQ: ``HAService``).

::

    sender.py      a master serves its slaves               votes.py     which sends wait for them
    receiver.py    a slave follows its master               metadata.py  topics, groups and offsets
    frames.py      the bytes between them                   reads.py     which of them consumers read from

    failover.py    the other mode: brokers choose their master themselves
    replica.py     one of them: follows, stands, leads      election.py  who may be master
    leader.py      a master of one term                     acks.py      when a message is on enough of them
    follower.py    one that follows it                      epochs.py    which term wrote which part of a log
    etcd.py        what they agree through                  controller.py  the same, Apache's controller

In the static mode, who is what stands in the settings and stays so; the bytes are those of Apache's brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs
import orjson

from verniermq.kernel import (
    Answer,
    Appended,
    Command,
    Connection,
    Context,
    Declaration,
    DispatchEvent,
    Handler,
    PluginError,
    Registry,
    RemotingError,
    RequestCode,
    RequestRefused,
    ResponseCode,
    Role,
    hookimpl,
    hookspecs,
)
from verniermq.plugins.ha.coordinator import coordinator_for
from verniermq.plugins.ha.failover import Failover
from verniermq.plugins.ha.metadata import Metadata, table_copied
from verniermq.plugins.ha.reads import Reads
from verniermq.plugins.ha.receiver import Receiver
from verniermq.plugins.ha.sender import LogSender
from verniermq.plugins.ha.settings import Config
from verniermq.plugins.ha.votes import Votes
from verniermq.protocol.peers import Peers

logger = logging.getLogger(__name__)

MESSAGES: Final = (
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.RECALL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)  # fmt: skip
"""What would append to the log: of a slave's, only the master may."""

TABLES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.SET_MESSAGE_REQUEST_MODE,
)  # fmt: skip
"""What a slave copies from its master: a change here would be gone at the next look."""


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Copies the log to slaves, or from a master, as RocketMQ's HA does.",
        needs=("namesrv",),
        after=("admin", "namesrv", "topics", "pop", "retry", "reply", "schedule", "txn"),
        hookspecs=(coordinator_for, table_copied),
        requests=(
            RequestCode.GET_REPLICAS,
            RequestCode.SWITCH_MASTER,
            RequestCode.FORCE_MASTER,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        ),
        gives_roles=True,
        # A message that nobody else has must not be acknowledged as if somebody had it.
        on_failure="closed",
        when_it_keeps_failing="stop",
    )
    config: Config
    broker: Context
    _votes: Votes = attrs.field(init=False)
    _sender: LogSender = attrs.field(init=False)
    _receiver: Receiver = attrs.field(init=False)
    _metadata: Metadata = attrs.field(init=False)
    _peers: Peers = attrs.field(init=False)
    failover: Failover | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        broker, config = self.broker, self.config
        self._peers = Peers(tls=lambda: broker.outgoing_tls)
        if config.mode == "failover":
            self.failover = Failover(broker, config, self._peers)
            return
        broker_id = broker.configuration.broker.id
        if config.is_slave != (broker_id > 0):
            raise PluginError(
                f'[plugins.ha] role = "{config.role}" does not go with [broker] id = {broker_id}: a master has id 0, '
                "and each of its slaves another one from 1 on",
                "ha",
            )
        if config.is_slave and not broker.configuration.broker.namesrv:
            raise PluginError(
                "a slave finds its master through a name server: put its address into [broker] namesrv", "ha"
            )
        self._votes = Votes(broker.clock, config.in_sync - 1, config.timeout)
        self._sender = LogSender(broker, config, self._votes)
        self._receiver = Receiver(broker, config, self._peers)
        self._metadata = Metadata(broker, self._peers)

    def setup(self, registry: Registry) -> None:
        failover = self.failover
        registry.handler(RequestCode.GET_REPLICAS, _not_chosen if failover is None else failover.replicas)
        registry.handler(RequestCode.SWITCH_MASTER, _not_chosen if failover is None else failover.switch_master)
        registry.handler(RequestCode.FORCE_MASTER, _not_chosen if failover is None else failover.force_master)
        changed = _not_chosen if failover is None else failover.role_changed_there
        registry.handler(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, changed)
        if self.failover is not None:
            self.failover.choose_coordinator()
            registry.service("be a replica", self.failover.run)
            registry.service("copy tables", self.failover.copy_tables)
        elif self.config.is_slave:
            registry.service("follow the master", self._receiver.run)
            registry.service("copy tables", self._copy_tables)
        else:
            registry.service("time-outs of sends", self._votes.run)

    @hookimpl
    def store_opened(self) -> None:
        self.broker.intercept({RequestCode.GET_BROKER_HA_STATUS: self._status})
        reads = Reads(self.broker, self.config, self._follows)
        self.broker.intercept(dict.fromkeys((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE), reads.pull))
        if self.failover is None and self.config.role != "sync_master":
            self.broker.hooks.pause(self, hookspecs.confirm_append)  # no send waits
        if self.failover is not None:
            self.failover.store_opened()
            self.broker.intercept(self.failover.only_master(self._refusals()))
            self.broker.intercept({RequestCode.GET_BROKER_EPOCH_CACHE: self.failover.epochs})
        elif self.config.is_slave:
            broker_id = self.broker.configuration.broker.id
            self.broker.store.refuse_writes(
                f"this broker is a slave (id {broker_id} of {self.broker.name!r}); send to its master", "ha"
            )
            self.broker.take_role(Role(broker_id))
            self.broker.intercept(self._refusals())

    @hookimpl
    async def broker_started(self) -> None:
        if self.failover is not None:
            await self.failover.broker_started()
            return
        if self.config.is_slave:
            return
        settings = self.broker.configuration.broker
        port = self.config.port or (settings.port + 1 if settings.port else 0)
        await self._sender.listen(settings.host, port)
        host = f"[{self.broker.host}]" if ":" in self.broker.host else self.broker.host
        self.broker.take_role(Role(0, ha_address=f"{host}:{self._sender.port}"))

    @hookimpl
    async def broker_leaving(self) -> None:
        if self.failover is not None:
            await self.failover.leave()

    @hookimpl
    async def broker_stopping(self) -> None:
        if self.failover is not None:
            await self.failover.broker_stopping()
        else:
            await self._sender.stop()
        self._peers.close()

    # --- a master --------------------------------------------------------------------------

    @hookimpl
    def confirm_append(self, appended: Appended) -> Awaitable[ResponseCode] | None:
        if self.failover is not None:
            return self.failover.confirm_append(appended)
        self._sender.send_new()
        return self._votes.wait(appended.end)

    @hookimpl
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        if self.failover is not None:
            return
        if self.config.is_slave:
            last = events[-1]
            self._receiver.last_record = (last.commit_log_offset, last.size)
        else:
            self._sender.wake()

    # --- a slave ---------------------------------------------------------------------------

    def _follows(self) -> bool:
        """Whether this slave has a master now."""
        if self.failover is None:
            return self._receiver.connected
        following = self.failover.members.following
        return following is not None and following.connected

    @hookimpl(optionalhook=True)
    def master_found(self, master: str, ha_address: str) -> None:
        if self.failover is None:
            self._receiver.master_found(master, ha_address)

    async def _copy_tables(self) -> None:
        while True:
            if self._receiver.master:
                try:
                    await self._metadata.copy(self._receiver.master)
                except RemotingError as error:
                    logger.warning("topics, groups and offsets are not copied: %s", error)
            await self.broker.clock.sleep(self.config.metadata_interval)

    def _refusals(self) -> Mapping[int, Any]:
        name = self.broker.name
        messages = _refusal(
            f"this broker is a slave of {name!r}; send to its master", ResponseCode.SERVICE_NOT_AVAILABLE
        )
        tables = _refusal(f"this broker is a slave of {name!r}; change it at its master", ResponseCode.SYSTEM_ERROR)
        ending = _refusal(f"this broker is a slave of {name!r}; end it at its master", ResponseCode.SLAVE_NOT_AVAILABLE)
        return {
            **dict.fromkeys(MESSAGES, messages),
            **dict.fromkeys(TABLES, tables),
            RequestCode.END_TRANSACTION: ending,
        }

    # --- for operators ---------------------------------------------------------------------

    def _status(self, handler: Handler, request: Command, connection: Connection) -> Command:
        """``mqadmin haStatus``, which ``admin`` answers where there are no copies."""
        if self.failover is not None:
            return request.reply(body=orjson.dumps(self.failover.ha_status()))
        end = self.broker.store.end
        if self.config.is_slave:
            status = {"haClientRuntimeInfo": self._receiver.status(), "haConnectionInfo": [], "inSyncSlaveNums": 0}
        else:
            slaves = self._sender.status()
            status = {"haConnectionInfo": slaves, "inSyncSlaveNums": sum(slave["inSync"] for slave in slaves)}
        body = {**status, "master": not self.config.is_slave, "masterCommitLogMaxOffset": end}
        return request.reply(body=orjson.dumps(body))

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        if self.failover is not None:
            return self.failover.runtime_info()
        if self.config.is_slave:
            return {"haFollows": self._receiver.ha_address, "haProblem": self._receiver.problem}
        return {"haSlaves": str(len(self._sender.slaves)), "haConfirmedOffset": str(self._votes.confirmed)}


def _not_chosen(request: Command, connection: Connection) -> Command:
    raise RequestRefused('the roles of these brokers stand in their settings; [plugins.ha] mode = "failover" elects')


def _refusal(why: str, code: ResponseCode) -> Any:
    def refuse(handler: Handler, request: Command, connection: Connection) -> Answer:
        raise RequestRefused(why, code)

    return refuse
