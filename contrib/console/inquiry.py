"""Questions to the brokers of a cluster: who is asked, on whose behalf, and who gave no answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import attrs

from verniermq.client.credentials import Credentials
from verniermq.kernel import Command, RemotingError, RequestCode, UnexpectedAnswer, parse_answer, request_name
from verniermq.kernel.requests import Request
from verniermq.protocol.peers import MASTER, Peers

T = TypeVar("T")

KEPT_SECONDS: Final = 2.0
"""How long a list is kept: pages that are open at the same time share it."""
AT_ONCE: Final = 32
"""Questions that are under way at the same time."""


class BrokerPlace(NamedTuple):
    cluster: str
    name: str
    broker_id: int
    """0 for a master."""
    address: str


@attrs.define(eq=False)
class AskedCluster:
    """The brokers that some name servers know.

    Args:
        own: the broker that the console is a plugin of, which is there without a name server too
    """

    peers: Peers
    own: Callable[[], BrokerPlace | None] = lambda: None
    _kept: dict[tuple[str, str], tuple[float, asyncio.Future[Any]]] = attrs.field(factory=dict, init=False)

    def inquiry(self, credentials: Credentials | None = None) -> Inquiry:
        """The questions of one page, asked on behalf of an account."""
        return Inquiry(self, credentials)

    def forget(self) -> None:
        """What was found before: something was changed."""
        self._kept.clear()

    async def kept(self, who: str, what: str, find: Callable[[], Awaitable[T]]) -> T:
        """What ``find`` found less than ``KEPT_SECONDS`` ago for the same account; those who come together share it."""
        now = time.monotonic()
        for key, (since, task) in list(self._kept.items()):
            if task.done() and now - since > KEPT_SECONDS:
                del self._kept[key]
        known = self._kept.get((who, what))
        if known is None or (known[1].done() and (known[1].cancelled() or known[1].exception() is not None)):
            known = self._kept[who, what] = (now, asyncio.ensure_future(find()))
        found: T = await asyncio.shield(known[1])
        return found


@attrs.define(eq=False)
class Inquiry:
    """The questions behind one page."""

    cluster: AskedCluster
    credentials: Credentials | None = None
    keeps: bool = attrs.field(default=True, init=False)
    """Whether lists are shared with other pages for a moment."""
    troubles: dict[str, str] = attrs.field(factory=dict, init=False)
    """Who gave no answer, and why; a page shows what the others say."""
    _places: list[BrokerPlace] | None = attrs.field(default=None, init=False)
    _turns: asyncio.Semaphore = attrs.field(factory=lambda: asyncio.Semaphore(AT_ONCE), init=False)

    @property
    def who(self) -> str:
        return "" if self.credentials is None else self.credentials.access_key

    async def brokers(self) -> list[BrokerPlace]:
        """All brokers that the name servers know, masters and slaves.

        Raises:
            RemotingError: no name server answers, and there is no broker around the console either.
        """
        if self._places is None:
            self._places = await self._find_brokers()
        return self._places

    async def _find_brokers(self) -> list[BrokerPlace]:
        own = self.cluster.own()
        try:
            command = self._signed(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
            body = await self.cluster.peers.ask_name_server(command)
        except RemotingError as error:
            if own is None:
                raise
            self.troubles["name servers"] = str(error)
            return [own]
        clusters = {name: of for of, names in (body.get("clusterAddrTable") or {}).items() for name in names}
        places = [
            BrokerPlace(clusters.get(name, ""), name, int(broker_id), address)
            for name, data in (body.get("brokerAddrTable") or {}).items()
            for broker_id, address in data["brokerAddrs"].items()
        ]
        return sorted(places) or ([own] if own is not None else [])

    async def masters(self) -> dict[str, str]:
        """Broker name → address of its master.

        Raises:
            RemotingError: as :meth:`brokers`.
        """
        return {place.name: place.address for place in await self.brokers() if place.broker_id == int(MASTER)}

    # --- asking ----------------------------------------------------------------------------

    def _signed(self, command: Command) -> Command:
        if self.credentials is not None:
            self.credentials.sign(command)
        return command

    async def ask(self, address: str, command: Command, timeout: float | None = None) -> Command:
        """
        Raises:
            UnexpectedAnswer: the broker refuses.
            RemotingError: it does not answer.
        """
        async with self._turns:
            return await self.cluster.peers.ask(address, self._signed(command), timeout=timeout)

    async def tell_name_servers(self, command: Command) -> None:
        """Each of them, for each keeps what it knows to itself.

        Raises:
            RemotingError: one does not take it.
        """
        for address in self.cluster.peers.name_servers:
            await self.ask(address, command)

    async def json(self, address: str, asked: Request | RequestCode) -> dict[Any, Any]:
        """The object in the body of an answer; a code alone is a request without fields.

        Raises:
            UnexpectedAnswer, RemotingError: as :meth:`ask`.
        """
        command = Command.request(asked) if isinstance(asked, RequestCode) else asked.command()
        return parse_answer((await self.ask(address, command)).body, address, request_name(command.code))

    async def each(
        self, asked: Request | RequestCode, *, brokers: Iterable[str] | None = None, fine: Iterable[int] = ()
    ) -> dict[str, dict[Any, Any]]:
        """What each master says, by its name. One that gives no answer is among the troubles; a refusal with one of the
        codes in ``fine`` is no trouble, but no answer either."""
        masters = await self.masters()
        names = [name for name in masters if brokers is None or name in brokers]
        allowed = set(fine)

        async def one(name: str) -> dict[Any, Any] | None:
            try:
                return await self.json(masters[name], asked)
            except UnexpectedAnswer as error:
                if error.code not in allowed:
                    self.troubles[name] = str(error)
            except RemotingError as error:
                self.troubles[name] = str(error)
            return None

        answers = await asyncio.gather(*map(one, names))
        return {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}

    async def kept(self, what: str, find: Callable[[Inquiry], Awaitable[T]]) -> T:
        """What ``find`` finds, kept for a moment for all pages of an account, which only read it."""

        async def found() -> tuple[T, dict[str, str]]:
            apart = Inquiry(self.cluster, self.credentials)
            return await find(apart), apart.troubles

        value, troubles = await (self.cluster.kept(self.who, what, found) if self.keeps else found())
        self.troubles.update(troubles)
        return value


def rows_by_queue(table: Any) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """A map whose keys are queues, which are read as pairs of names and values."""
    return [(dict(queue), row) for queue, row in (table or {}).items() if isinstance(queue, tuple)]
