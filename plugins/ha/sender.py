"""The master's side: slaves connect, say where their log ends, get what follows (RocketMQ: ``DefaultHAConnection``).

The log goes out of here, so this is a door. Whoever does not come from an address of ``slaves`` is sent away without a
byte. A slave that cannot be served is told nothing, since the protocol has no words for it, but the operator is: one
whose log goes on behind ours (it has what we lost, or it belongs to another master), or ends before our oldest file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any, Final

import anyio
import attrs

from verniermq.kernel import Context, PluginError
from verniermq.plugins.ha.door import Door, come_from, serving_tls
from verniermq.plugins.ha.frames import Reports, block
from verniermq.plugins.ha.settings import Config
from verniermq.plugins.ha.votes import Votes

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 20.0
CHUNK: Final = 65536
MOST_CONNECTIONS: Final = 64


@attrs.define(eq=False)
class Slave:
    """One connection of a slave."""

    address: str
    machine: str
    writer: asyncio.StreamWriter
    sent: int = -1
    """Up to where it was sent the log; -1 before its first report."""
    ack: int = -1
    heard: float = 0.0
    reported: anyio.Event = attrs.Factory(anyio.Event)
    is_level: bool = False
    """Whether it was sent all there was, and waits for more."""
    more: anyio.Event = attrs.Factory(anyio.Event)
    """Set when there is more than can be sent at once."""
    wrote: float = 0.0
    """When it was sent something, or a sign of life."""


class LogSender:
    """Serves the slaves of one master."""

    def __init__(self, broker: Context, config: Config, votes: Votes) -> None:
        self.port = 0
        self.slaves: set[Slave] = set()
        self._broker = broker
        self._config = config
        self._votes = votes
        self._door = Door(broker, config)
        self._tls = None if config.is_slave else serving_tls(broker, config)
        self._is_woken = False
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """
        Raises:
            PluginError: it cannot be listened there.
        """
        try:
            self._server = await asyncio.start_server(self._greet, host, port, ssl=self._tls)
        except OSError as error:
            raise PluginError(
                f"slaves cannot be served on {host}:{port}: {error.strerror or error}; set [plugins.ha] port", "ha"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        logger.info("slaves are served port=%d from=%s", self.port, self._config.slaves or "this machine")

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for slave in list(self.slaves):
            slave.writer.transport.abort()

    def wake(self) -> None:
        """The log has grown. What a turn of the loop appends goes out together, after it."""
        if self.slaves and not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self.send_new)

    def send_new(self) -> None:
        """Send all slaves what they lack and can take at once."""
        self._is_woken = False
        for slave in self.slaves:
            if slave.is_level and not self._sent_at_once(slave):
                slave.is_level = False
                slave.more.set()

    def _sent_at_once(self, slave: Slave) -> bool:
        """Whether a slave that was level is so again: what is new is in memory, and its connection is free."""
        store, transport = self._broker.store, slave.writer.transport
        size = store.end - slave.sent
        if size > self._config.block_size or transport.get_write_buffer_size() or transport.is_closing():
            return False
        if size and store.fetching([(slave.sent, size)]) is not None:
            return False
        data = store.read_block(slave.sent, size) if size else b""
        if data is None:
            return False
        if data:
            self._write_block(slave, data)
        return slave.sent == store.end

    def _write_block(self, slave: Slave, data: bytes) -> None:
        if slave.writer.transport.is_closing():
            raise ConnectionResetError("the connection is closed")  # uvloop would raise something else
        slave.writer.write(block(slave.sent, data))
        slave.sent += len(data)
        slave.wrote = self._broker.clock.monotonic()

    # --- who may ---------------------------------------------------------------------------

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (peer := come_from(writer)) is None:
            writer.transport.abort()
            return
        host, port = peer
        if not await self._door.admits(host):
            logger.error(
                "%s:%d wants a copy of the log and is no slave; if it shall be one, put its address into slaves in "
                "[plugins.ha]", host, port,
            )  # fmt: skip
            writer.transport.abort()
            return
        if len(self.slaves) >= MOST_CONNECTIONS:
            logger.error("slave refused: there are %d connections of slaves already address=%s", MOST_CONNECTIONS, host)
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        slave = Slave(f"{host}:{port}", host, writer, heard=self._broker.clock.monotonic())
        self.slaves.add(slave)
        logger.info("slave connected address=%s", slave.address)
        try:
            async with anyio.create_task_group() as tasks:
                for work in (self._read(slave, reader), self._write(slave), self._watch(slave), self._beat(slave)):
                    tasks.start_soon(_until_it_ends, work, tasks.cancel_scope)
        finally:
            self.slaves.discard(slave)
            self._votes.forget(slave)
            writer.transport.abort()
            logger.info("slave gone address=%s log_end=%d", slave.address, slave.ack)

    # --- what it says ----------------------------------------------------------------------

    async def _read(self, slave: Slave, reader: asyncio.StreamReader) -> None:
        reports = Reports()
        while data := await reader.read(CHUNK):
            slave.heard = self._broker.clock.monotonic()
            end = reports.feed(data)
            if end is not None and not self._take_report(slave, end):
                return

    def _take_report(self, slave: Slave, end: int) -> bool:
        """Whether it can be true, and the slave be served."""
        store = self._broker.store
        if slave.sent < 0:
            why = self._why_not(end)
            if why:
                logger.error("slave %s is not served: %s", slave.address, why)
                return False
            slave.sent = end or store.start
            slave.wrote = self._broker.clock.monotonic()
        elif not max(slave.ack, 0) <= end <= slave.sent:
            logger.error(
                "slave %s says that its log ends at %d, after %d, and was sent it up to %d; it is not believed",
                slave.address, end, slave.ack, slave.sent,
            )  # fmt: skip
            return False
        slave.ack = end
        self._votes.acknowledge(slave, slave.machine, end)
        slave.reported.set()
        return True

    def _why_not(self, end: int) -> str:
        store = self._broker.store
        if end > store.end or end < 0:
            return (
                f"its log ends at {end}, and ours at {store.end}: it has what this broker has lost, or is a copy of "
                "another one; look at both, and empty the slave's store to begin anew"
            )
        if 0 < end < store.start:
            return (
                f"its log ends at {end}, and ours begins at {store.start}: what lies between was deleted; empty the "
                "slave's store to begin anew"
            )
        return ""

    async def _watch(self, slave: Slave) -> None:
        """A slave that is silent for long is gone, though its connection may not know."""
        while (left := slave.heard + SILENCE_SECONDS - self._broker.clock.monotonic()) > 0:
            await self._broker.clock.sleep(left)
        logger.warning("slave silent for %g s, closing address=%s", SILENCE_SECONDS, slave.address)

    # --- what it gets ----------------------------------------------------------------------

    async def _write(self, slave: Slave) -> None:
        """Bring it level, and again whenever more has come than :meth:`wake` can send."""
        await slave.reported.wait()
        store = self._broker.store
        while True:
            if slave.sent == store.end:
                slave.more = anyio.Event()
                slave.is_level = True
                await slave.more.wait()
            place = [(slave.sent, min(self._config.block_size, store.end - slave.sent))]
            if (fetching := store.fetching(place)) is not None:
                await fetching
            data = store.read_block(slave.sent, self._config.block_size)
            if data is None:
                logger.error("slave %s is too slow: its log ends at %d, and ours begins at %d; empty its store to "
                             "begin anew", slave.address, slave.ack, store.start)  # fmt: skip
                return
            if data:
                self._write_block(slave, data)
            await slave.writer.drain()

    async def _beat(self, slave: Slave) -> None:
        """A sign of life for who was sent nothing else."""
        await slave.reported.wait()
        clock = self._broker.clock
        while True:
            await clock.sleep(max(slave.wrote + HEARTBEAT_SECONDS - clock.monotonic(), 0.01))
            if clock.monotonic() - slave.wrote >= HEARTBEAT_SECONDS:
                self._write_block(slave, b"")

    # --- for operators ---------------------------------------------------------------------

    def status(self) -> list[dict[str, Any]]:
        """RocketMQ's ``HAConnectionRuntimeInfo`` of each slave."""
        end = self._broker.store.end
        return [
            {
                "addr": slave.address,
                "diff": end - max(slave.ack, 0),
                "inSync": slave.ack >= 0,
                "slaveAckOffset": slave.ack,
                "transferFromWhere": slave.sent,
                "transferredByteInSecond": 0,
            }
            for slave in self.slaves
        ]


async def _until_it_ends(work: Any, scope: anyio.CancelScope) -> None:
    """Of several pieces of work on one connection, the first that ends ends all."""
    with contextlib.suppress(OSError):
        await work
    scope.cancel()
