"""The slave's side: connect to the master, say where our log ends, append what comes (RocketMQ: ``DefaultHAClient``).

The protocol lets a slave follow a master whose log is another one, and nobody would notice. So the master is asked
first, by ordinary requests: how long its files are, where its log begins and ends, and whether our newest record lies
there as we have it. If not, the log is left as it is, and the operator is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any, Final

import anyio
import anyio.lowlevel

from verniermq.kernel import (
    Command,
    Context,
    NotACopy,
    ProtocolError,
    RemotingError,
    RequestCode,
    StoreNotWritable,
    UnexpectedAnswer,
    parse_address,
    parse_answer,
)
from verniermq.plugins.ha.door import asking_tls
from verniermq.plugins.ha.frames import REPORT, Blocks
from verniermq.plugins.ha.settings import Config
from verniermq.protocol.peers import Peers
from verniermq.protocol.query import ViewMessage

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 20.0
CONNECT_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 1.0
CHUNK: Final = 1 << 20


class CannotFollow(Exception):
    """The master's log does not go on where ours ends."""


class Receiver:
    """Follows one master, whoever that is."""

    def __init__(self, broker: Context, config: Config, peers: Peers) -> None:
        self.master = ""
        """The address of its broker."""
        self.ha_address = ""
        self.problem = ""
        """Why we do not follow, for operators."""
        self.connected = False
        self.heard = 0.0
        self.last_record: tuple[int, int] | None = None
        """Offset and size of the newest record that came since the start."""
        self._broker = broker
        self._peers = peers
        self._tls = asking_tls(broker, config) if config.is_slave else None
        self._known = anyio.Event()
        self._reported = -1

    def master_found(self, master: str, ha_address: str) -> None:
        self.master = master
        if ha_address:
            self.ha_address = ha_address
        if self.master and self.ha_address:
            self._known.set()
        elif self._known.is_set():
            self._known = anyio.Event()  # it is gone, and there is nobody to ask

    async def run(self) -> None:
        """Follow, for ever."""
        while True:
            await self._known.wait()
            try:
                await self._check_master()
                await self._follow()
            except (CannotFollow, NotACopy) as error:
                if str(error) != self.problem:
                    logger.error("this slave does not follow %s: %s", self.master, error)
                self.problem = str(error)
            except (OSError, RemotingError, ProtocolError, StoreNotWritable, TimeoutError) as error:
                logger.warning("no connection to the master %s: %s", self.ha_address, error)
            finally:
                self.connected = False
            await self._broker.clock.sleep(PAUSE_SECONDS)

    # --- is it our master? -----------------------------------------------------------------

    async def _check_master(self) -> None:
        """
        Raises:
            CannotFollow: its log is not what ours is a copy of.
            RemotingError: it cannot be asked.
        """
        await self._compare_files()
        store = self._broker.store
        if store.end == store.start:
            return
        info = await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = parse_answer(info.body, self.master, "GET_BROKER_RUNTIME_INFO").get("table") or {}
        low, high = int(table.get("commitLogMinOffset", 0)), int(table.get("commitLogMaxOffset", 0))
        if store.copied_end > high:
            raise CannotFollow(
                f"our log ends at {store.copied_end}, the master's at {high}: it has lost what we have, or is another "
                "one; look at both, and empty this store to begin anew"
            )
        if store.end < low:
            raise CannotFollow(
                f"our log ends at {store.end}, the master's begins at {low}: what lies between was deleted there; "
                "empty this store to begin anew"
            )
        await self._compare_newest(low)

    async def _compare_files(self) -> None:
        ours = self._broker.configuration.store.segment_size
        text = (await self._ask(RequestCode.GET_BROKER_CONFIG)).body.decode("utf-8", "replace")
        theirs = next((line.partition("=")[2] for line in text.splitlines()
                       if line.startswith("mappedFileSizeCommitLog=")), "")  # fmt: skip
        if theirs and theirs.strip() != str(ours):
            raise CannotFollow(
                f"our log's files have {ours} bytes (segment_size), the master's {theirs.strip()} "
                "(mappedFileSizeCommitLog); give both the same"
            )

    async def _compare_newest(self, low: int) -> None:
        place = self._newest_record()
        if place is None or place[0] < low:
            return
        offset, size = place
        ours = self._broker.store.read(offset, size)
        try:
            answer = await self._peers.ask(self.master, ViewMessage(offset=offset).command())
        except UnexpectedAnswer as error:
            raise CannotFollow(
                f"the master has no record at {offset}, where our newest lies ({error.remark}); look at both logs"
            ) from error
        if answer.body != ours:
            raise CannotFollow(
                f"the master's record at {offset} is another one than ours: the logs differ; look at both, and empty "
                "this store to begin anew"
            )

    def _newest_record(self) -> tuple[int, int] | None:
        places = [self.last_record] if self.last_record is not None else []
        for queue in self._broker.store.queues():
            for offset, size, _ in queue.entries(queue.max_offset - 1, 1):
                places.append((offset, size))
        return max(places, default=None)

    async def _ask(self, code: RequestCode, fields: dict[str, str] | None = None) -> Command:
        return await self._peers.ask(self.master, Command.request(code, fields or {}))

    # --- following -------------------------------------------------------------------------

    async def _follow(self) -> None:
        host, port = parse_address(self.ha_address)
        with anyio.fail_after(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, limit=CHUNK, ssl=self._tls)
        try:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            logger.info("following the master address=%s from=%d", self.ha_address, self._broker.store.end)
            self.connected, self.problem = True, ""
            self.heard = self._broker.clock.monotonic()
            self._report(writer)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_alive, writer)
                await self._read(reader, writer)
                tasks.cancel_scope.cancel()
        except* (NotACopy, OSError, ProtocolError, StoreNotWritable) as group:
            raise group.exceptions[0] from None
        finally:
            writer.transport.abort()

    def _report(self, writer: asyncio.StreamWriter) -> None:
        self._reported = self._broker.store.end
        writer.write(REPORT.pack(self._reported))

    async def _keep_alive(self, writer: asyncio.StreamWriter) -> None:
        while self._broker.clock.monotonic() - self.heard < SILENCE_SECONDS:
            await self._broker.clock.sleep(HEARTBEAT_SECONDS)
            self._report(writer)
        logger.warning("the master is silent for %g s, closing address=%s", SILENCE_SECONDS, self.ha_address)
        writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        blocks, store = Blocks(), self._broker.store
        while data := await reader.read(CHUNK):
            self.heard = self._broker.clock.monotonic()
            for offset, body in blocks.feed(data):
                if not body and offset == store.end:
                    continue
                if not body and store.end == store.start:
                    continue  # it would begin with another file
                store.append_raw(offset, body)
                self._report(writer)  # sends wait for it: before what came is brought into queues
                await anyio.lowlevel.checkpoint()

    def status(self) -> dict[str, Any]:
        """RocketMQ's ``HAClientRuntimeInfo``."""
        now_ms, silent = self._broker.clock.now_ms(), self._broker.clock.monotonic() - self.heard
        return {
            "activated": self.connected,
            "lastReadTimestamp": round(now_ms - silent * 1000) if self.heard else 0,
            "lastWriteTimestamp": 0,
            "masterAddr": self.ha_address,
            "masterFlushOffset": 0,
            "maxOffset": self._broker.store.end,
            "transferredByteInSecond": 0,
        }
