"""One that follows an elected master: cut what it does not have, then append what it sends.

Whatever is acknowledged here is acknowledged on a connection: once it is closed, the master gets nothing more. So a
replica that stands for election closes it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread

from verniermq.kernel import Context, NotACopy, ProtocolError, StoreError, StoreNotWritable, parse_address
from verniermq.plugins.ha import epochfile
from verniermq.plugins.ha.door import asking_tls
from verniermq.plugins.ha.epochs import Epochs, agreed, cut
from verniermq.plugins.ha.identity import forget
from verniermq.plugins.ha.leader import HEARTBEAT_SECONDS, say
from verniermq.plugins.ha.settings import Config
from verniermq.plugins.ha.switchframes import Block, FromMaster, Greeting, History, MasterStream, report

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 1.0
CHUNK: Final = 1 << 20


class Diverged(StoreError):
    """The master's log lacks what is confirmed here: nothing of it may be cut off."""


class Following:
    """The log of this replica while it follows one master of one term."""

    def __init__(
        self,
        broker: Context,
        config: Config,
        greeting: Greeting,
        address: str,
        epochs: Epochs,
        on_refused: Callable[[], None],
    ) -> None:
        self.address = address
        self.term = greeting.term
        self.epochs = epochs
        self.connected = False
        self.caught_up = False
        """Whether this replica has had all that was confirmed, since it follows this master."""
        self.problem = ""
        self.heard = 0.0
        self._broker, self._config = broker, config
        self._greeting = greeting
        self._on_refused = on_refused

    async def run(self) -> None:
        """Follow until cancelled."""
        pause = PAUSE_SECONDS
        while True:
            try:
                await self._follow()
                pause = PAUSE_SECONDS
            except ConnectionRefusedError:
                self._on_refused()
            except (Diverged, NotACopy) as error:
                if str(error) != self.problem:
                    logger.error("this replica does not follow %s: %s", self.address, error)
                self.problem, pause = str(error), LONGEST_PAUSE_SECONDS
            except (OSError, TimeoutError, ProtocolError, StoreNotWritable) as error:
                logger.info("no connection to the master %s: %s", self.address, error or type(error).__name__)
            finally:
                self.connected = False
            await self._broker.clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _follow(self) -> None:
        host, port = parse_address(self.address)
        tls = asking_tls(self._broker, self._config)
        with anyio.fail_after(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, limit=CHUNK, ssl=tls)
        try:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.heard = self._broker.clock.monotonic()
            say(writer, self._greeting.packed())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, writer)
                await self._copy(reader, writer)
                tasks.cancel_scope.cancel()
        except* (NotACopy, OSError, ProtocolError, StoreError, StoreNotWritable) as group:
            raise group.exceptions[0] from None
        finally:
            writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        store = self._broker.store
        async for message in self._messages(reader):
            if isinstance(message, History):
                await self._agree(message)
                self.connected, self.problem = True, ""
                logger.info("following the master address=%s term=%d from=%d", self.address, self.term, store.end)
            elif not self.connected:
                raise ProtocolError("the master sends its log before it says which it is")
            elif message.body:
                store.append_raw(message.offset, message.body)
            elif message.offset != store.end and store.end > store.start:
                raise NotACopy(f"the log ends at {store.end}, and the master goes on at {message.offset}")
            if isinstance(message, Block):
                confirm = min(message.confirm, store.end)
                self.caught_up = self.caught_up or message.confirm <= store.copied_end
                if confirm > (store.dispatch_limit or 0):
                    store.dispatch_limit = confirm
            if isinstance(message, History) or message.body:
                self._refuse_broken_disk()
                say(writer, report(store.end))
                await anyio.lowlevel.checkpoint()

    def _refuse_broken_disk(self) -> None:
        """What a disk failed to take the system may drop from its memory: this replica has it no longer for sure."""
        why = self._broker.store.broken
        if why is not None:
            forget(Path(self._broker.configuration.store.path))
            raise StoreNotWritable(why)

    async def _messages(self, reader: asyncio.StreamReader) -> AsyncIterator[FromMaster]:
        stream = MasterStream()
        while data := await reader.read(CHUNK):
            self.heard = self._broker.clock.monotonic()
            for message in stream.feed(data):
                yield message

    async def _watch(self, writer: asyncio.StreamWriter) -> None:
        """Say that we are here, and close a connection on which nothing comes."""
        clock = self._broker.clock
        while clock.monotonic() - self.heard < self._config.silence:
            await clock.sleep(HEARTBEAT_SECONDS)
            if self.connected:
                say(writer, report(self._broker.store.end))
        logger.warning("the master is silent for %g s, closing address=%s", self._config.silence, self.address)
        writer.transport.abort()

    # --- agreeing --------------------------------------------------------------------------

    async def _agree(self, history: History) -> None:
        """Cut our log to what it has in common with the master's, and take over its epochs, in this order.

        Raises:
            Diverged: that would take what is confirmed.
            ProtocolError: it is the master of another term.
        """
        store = self._broker.store
        if history.term != self.term:
            raise ProtocolError(f"{self.address} is the master of term {history.term}, not of {self.term}")
        if store.copied_end < store.end:
            await store.cut(store.copied_end)
        common = agreed(cut(self.epochs, store.end), store.end, history.epochs, history.end)
        limit = store.dispatch_limit or 0
        # The limit may lie within a record, of which nobody need have more.
        confirm = max([store.dispatched_end, *(event.end for event in store.undispatched if event.end <= limit)])
        if common < confirm:
            raise Diverged(
                f"our log is confirmed up to {confirm}, and it has only {common} bytes in common with the master's; "
                "look at both; to give this one up, begin it anew with 'verniermq ha resync'"
            )
        with anyio.CancelScope(shield=True):
            await self._take_over(history, common)

    async def _take_over(self, history: History, common: int) -> None:
        store = self._broker.store
        if common < store.end:
            logger.warning("cutting off what the master does not have from=%d to=%d", common, store.end)
            await store.cut(common)
        if self.epochs != history.epochs:
            folder = Path(self._broker.configuration.store.path)
            await anyio.to_thread.run_sync(epochfile.save, folder, history.epochs)
            self.epochs = history.epochs

    def status(self) -> dict[str, Any]:
        """RocketMQ's ``HAClientRuntimeInfo``."""
        now_ms, silent = self._broker.clock.now_ms(), self._broker.clock.monotonic() - self.heard
        return {
            "activated": self.connected,
            "lastReadTimestamp": round(now_ms - silent * 1000) if self.heard else 0,
            "lastWriteTimestamp": 0,
            "masterAddr": self.address,
            "masterFlushOffset": 0,
            "maxOffset": self._broker.store.end,
            "transferredByteInSecond": 0,
        }
