"""The nodes of one broker name in ZooKeeper.

::

    /verniermq/<cluster>/<broker>/state             term, master, in-sync set; changed by comparing its version
    /verniermq/<cluster>/<broker>/live/<replica>    as long as the session of the replica lasts
    /verniermq/<cluster>/<broker>/members/<replica> the same, for ever

kazoo keeps a session alive from a thread of its own, also for a broker whose loop hangs. So a session ends here when
nobody has asked for it to be kept for as long as it lasts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import anyio
import anyio.to_thread
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_digest_acl

from verniermq.plugins.ha.coordinator import CoordinatorTrouble, Live, Snapshot, pack_state, unpack_state
from verniermq.plugins.ha.election import State

if TYPE_CHECKING:
    from verniermq.contrib.zookeeper import Config

logger = logging.getLogger(__name__)

CALL_SECONDS: Final = 2.0
NO_ANSWER: Final = (KazooException, KazooTimeoutError, TimeoutError, OSError)


class Session:
    """A connection to ZooKeeper that lasts as long as somebody keeps it alive."""

    def __init__(self, client: Any, seconds: float) -> None:
        self.client = client
        self.announced = 0
        """The replica that is alive by it; 0 if none."""
        self._seconds = seconds
        self._kept = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="zookeeper-session", daemon=True).start()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def keep(self) -> None:
        self._kept = time.monotonic()

    def end(self) -> None:
        """Close it, in its own thread: what is alive by it is gone then."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.is_set():
            left = self._kept + self._seconds - time.monotonic() if self.announced else self._seconds
            if left <= 0:
                self._over.set()
            self._over.wait(max(left, 0.01))
        self.client.stop()
        self.client.close()


class ZooKeeper:
    """The nodes of one broker name."""

    elects_alone = False

    def __init__(self, config: Config, cluster: str, broker: str, *, ttl: float) -> None:
        self._config, self._ttl = config, ttl
        self._folder = f"/verniermq/{quote(cluster, safe='')}/{quote(broker, safe='')}"
        self._session: Session | None = None
        self._connecting = anyio.Lock()
        self._changed = anyio.Event()

    # --- what a coordinator does -----------------------------------------------------------

    async def read(self) -> Snapshot:
        self._changed = anyio.Event()
        told = self._tell_from_thread(self._changed.set)
        # A server may be behind the others, and knows it has all that was there before only after this.
        await self._ask(lambda client: client.sync_async(self._folder))
        found = await self._get("state", told)
        live, members = await self._table("live", told), await self._table("members", None)
        if found is None:
            return Snapshot(None, 0, live, members)
        return Snapshot(unpack_state(found[0]), found[1].version + 1, live, members)

    async def change(self, state: State, revision: int) -> int:
        path, data = f"{self._folder}/state", pack_state(state)
        try:
            if not revision:
                await self._ask(lambda client: client.create_async(path, data))
                return 1
            stored = await self._ask(lambda client: client.set_async(path, data, version=revision - 1))
        except (BadVersionError, NodeExistsError, NoNodeError):
            return 0
        return int(stored.version) + 1

    async def announce(self, replica: int, live: Live) -> None:
        data, path = live.packed(), f"{self._folder}/live/{replica}"
        session = await self._open()
        if session.announced == replica:
            await self._ask(lambda client: client.set_async(path, data))
        else:
            await self._replace(path, data)
            await self._put(f"{self._folder}/members/{replica}", data)
            session.announced = replica
        session.keep()

    async def keep_alive(self) -> bool:
        session = self._session
        if session is None or session.over or not session.announced:
            return False
        path = f"{self._folder}/live/{session.announced}"
        found = await self._ask(lambda client: client.exists_async(path))
        if found is None or found.ephemeralOwner != session.client.client_id[0]:
            session.announced = 0  # the session ran out, and kazoo made another
            return False
        session.keep()
        return True

    async def leave(self) -> None:
        session, self._session = self._session, None
        if session is not None and session.announced:
            path = f"{self._folder}/live/{session.announced}"
            try:
                await self._answer(session.client.delete_async(path))
            except NO_ANSWER as error:
                raise CoordinatorTrouble(f"ZooKeeper does not answer: {error!r}") from error
            finally:
                session.end()
        elif session is not None:
            session.end()

    async def changed(self) -> None:
        await self._changed.wait()

    # --- nodes -----------------------------------------------------------------------------

    async def _get(self, name: str, told: Callable[..., None] | None) -> tuple[bytes, Any] | None:
        path = f"{self._folder}/{name}"
        try:
            found: tuple[bytes, Any] = await self._ask(lambda client: client.get_async(path, watch=told))
            return found
        except NoNodeError:
            if told is not None and await self._ask(lambda client: client.exists_async(path, watch=told)) is not None:
                return await self._get(name, told)  # it was made in between
            return None

    async def _table(self, name: str, told: Callable[..., None] | None) -> dict[int, Live]:
        numbers = await self._ask(lambda client: client.get_children_async(f"{self._folder}/{name}", watch=told))
        table = {}
        for number in numbers:
            found = await self._get(f"{name}/{number}", None)
            if found is not None:
                table[int(number)] = _live(found[0], f"{self._folder}/{name}/{number}")
        return table

    async def _put(self, path: str, data: bytes) -> None:
        try:
            await self._ask(lambda client: client.set_async(path, data))
        except NoNodeError:
            await self._ask(lambda client: client.create_async(path, data))

    async def _replace(self, path: str, data: bytes) -> None:
        """Make a node that lasts as long as our session; an earlier life of this replica may have left one."""
        for _ in range(2):
            try:
                await self._ask(lambda client: client.create_async(path, data, ephemeral=True))
                return
            except NodeExistsError:
                try:
                    await self._ask(lambda client: client.delete_async(path))
                except NoNodeError:
                    continue
        raise CoordinatorTrouble(
            f"{path} is made by somebody else again and again; two brokers have this replica's number"
        )

    # --- the session -----------------------------------------------------------------------

    async def _open(self) -> Session:
        """
        Raises:
            CoordinatorTrouble: no server answers.
        """
        async with self._connecting:
            if self._session is None or self._session.over:
                try:
                    self._session = await anyio.to_thread.run_sync(self._connect)
                except NO_ANSWER as error:
                    servers = ", ".join(self._config.servers)
                    raise CoordinatorTrouble(f"ZooKeeper at {servers} does not answer: {error!r}") from error
            return self._session

    def _connect(self) -> Session:
        """Blocks."""
        config = self._config
        own = {}
        if config.user:
            own = {
                "auth_data": [("digest", f"{config.user}:{config.password}")],
                "default_acl": [make_digest_acl(config.user, config.password, all=True)],
            }
        client = KazooClient(
            hosts=",".join(config.servers), timeout=self._ttl, use_ssl=config.tls, ca=config.ca or None,
            certfile=config.certificate or None, keyfile=config.certificate or None, logger=logger, **own,
        )  # fmt: skip
        try:
            client.start(timeout=CALL_SECONDS)
            for name in ("live", "members"):
                client.ensure_path(f"{self._folder}/{name}")
        except BaseException:
            client.stop()
            client.close()
            raise
        return Session(client, self._ttl)

    async def _ask(self, question: Callable[[Any], Any]) -> Any:
        """
        Raises:
            NoNodeError, NodeExistsError, BadVersionError: the answer.
            CoordinatorTrouble: there is none.
        """
        session = await self._open()
        try:
            return await self._answer(question(session.client))
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except NO_ANSWER as error:
            raise CoordinatorTrouble(f"ZooKeeper does not answer: {error!r}") from error

    async def _answer(self, result: Any) -> Any:
        """What kazoo's thread finds, in our loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        result.rawlink(self._tell_from_thread(finish))
        with anyio.fail_after(CALL_SECONDS):
            await done
        return result.get_nowait()

    @staticmethod
    def _tell_from_thread(act: Callable[[], object]) -> Callable[..., None]:
        loop = asyncio.get_running_loop()

        def tell(*event: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(act)

        return tell


def _live(data: bytes, path: str) -> Live:
    try:
        return Live.of(data)
    except (ValueError, KeyError, TypeError) as error:
        raise CoordinatorTrouble(f"ZooKeeper has {data[:100]!r} at {path}: {error!r}") from error
