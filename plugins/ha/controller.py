"""Apache's controller as the coordinator: RocketMQ's own requests, so there is nothing to install here.

::

    1005 GET_METADATA_INFO      which of the controllers leads
    1013 APPLY_BROKER_ID        this replica's number belongs to this store
    1003 REGISTER_BROKER        where it is
     904 BROKER_HEARTBEAT       it is alive, and how long its log is; to all controllers
    1006 GET_SYNC_STATE_DATA    term ("masterEpoch"), master, in-sync set ("SyncStateSet"), who is alive
    1001 ALTER_SYNC_STATE_SET   another set; compared with the version of the old one
    1002 ELECT_MASTER           another master
    1008 NOTIFY_BROKER_ROLE_CHANGED   from the controller: there is another master

A controller elects by itself when the master's connection is closed or its heartbeats end, among those of the set that
are alive, the one with the longest log; the set is then the new master alone. It knows replicas by their numbers.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import anyio
import orjson

from verniermq.kernel import Clock, Command, RemotingError, RequestCode, parse_answer
from verniermq.plugins.ha.coordinator import ChangeRefused, CoordinatorTrouble, Live, Snapshot
from verniermq.plugins.ha.election import State
from verniermq.protocol.peers import Peers

logger = logging.getLogger(__name__)

CALL_SECONDS: Final = 2.0
PEER_SECONDS: Final = 0.5
"""How long another replica is waited for; what it said last has to do then."""
CHANGED_SECONDS: Final = 5.0
ANY: Final = range(1 << 31)
NOBODY: Final = ""
"""The incarnation of a replica: a controller knows none."""


class ControllerCode(IntEnum):
    """Requests to a controller."""

    ALTER_SYNC_STATE_SET = 1001
    ELECT_MASTER = 1002
    REGISTER_BROKER = 1003
    GET_METADATA_INFO = 1005
    GET_SYNC_STATE_DATA = 1006
    GET_NEXT_BROKER_ID = 1012
    APPLY_BROKER_ID = 1013


class ControllerAnswer(IntEnum):
    SUCCESS = 0
    FENCED_MASTER_EPOCH = 2000
    FENCED_SYNC_STATE_SET_EPOCH = 2001
    INVALID_MASTER = 2002
    INVALID_REPLICAS = 2003
    BROKER_NOT_ALIVE = 2006
    NOT_LEADER = 2007
    MASTER_STILL_EXIST = 2011
    ALTER_SYNC_STATE_SET_FAILED = 2013
    BROKER_ID_INVALID = 2014


OUTDATED: Final = (
    ControllerAnswer.FENCED_MASTER_EPOCH, ControllerAnswer.FENCED_SYNC_STATE_SET_EPOCH,
    ControllerAnswer.INVALID_MASTER, ControllerAnswer.ALTER_SYNC_STATE_SET_FAILED,
)  # fmt: skip
"""Somebody changed the state meanwhile, or it is what was asked for."""
NOT_NOW: Final = (ControllerAnswer.INVALID_REPLICAS, ControllerAnswer.BROKER_NOT_ALIVE)


class Controller:
    """One replica of a broker name, at the controllers of its cluster.

    Args:
        check_code: what this store is known by there; another store does not get its number
    """

    elects_alone = True

    def __init__(
        self,
        controllers: Sequence[str],
        cluster: str,
        broker: str,
        replica: int,
        *,
        ttl: float,
        check_code: str,
        clock: Clock,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self._controllers = list(controllers)
        self._cluster, self._broker, self._replica = cluster, broker, replica
        self._ttl, self._check_code, self._clock = ttl, check_code, clock
        self._peers = Peers(timeout=CALL_SECONDS, tls=tls)
        self._leader = ""
        self._registered = ""
        """The address that this replica is registered with."""
        self._announced: Live | None = None
        self._beaten = 0.0
        self._known: dict[int, Live] = {}
        """What other replicas said of themselves."""
        self._news = anyio.Event()

    # --- what a coordinator does -----------------------------------------------------------

    async def read(self) -> Snapshot:
        self._news = anyio.Event()
        term, master, in_sync, epoch, rows = await self._stored()
        alive = {int(row["brokerId"]): str(row["brokerAddress"]) for row in rows if row.get("alive")}
        async with anyio.create_task_group() as tasks:
            for number, address in alive.items():
                if number != self._replica:
                    tasks.start_soon(self._look_at, number, address)
        known = dict(self._known)
        if self._announced is not None:
            known[self._replica] = self._announced
        members = {
            int(row["brokerId"]): known.get(int(row["brokerId"]), Live(NOBODY, str(row["brokerAddress"]), ""))
            for row in rows
        }
        live = {number: known[number] for number in alive if number in known}
        state = State(term, master, frozenset((number, NOBODY) for number in in_sync)) if term else None
        return Snapshot(state, epoch if term else 0, live, members)

    async def change(self, state: State, revision: int) -> int:
        term, master, _, epoch, _ = await self._stored()
        if state.term == term and state.master == master == self._replica:
            return await self._alter(state, revision) if epoch == revision else 0
        if (state.term, revision) != (term + 1, epoch if term else 0):
            return 0
        return await self._elect(state, designated=state.master != self._replica)

    async def announce(self, replica: int, live: Live) -> None:
        if self._registered != live.address:
            await self._register(live.address)
        self._announced = live
        await self._beat(live)

    async def keep_alive(self) -> bool:
        live = self._announced
        if live is None or self._clock.monotonic() - self._beaten > self._ttl:
            return False
        await self._beat(live)
        return True

    async def leave(self) -> None:
        """A controller takes whose connection is closed for gone."""
        async with self._peers:  # leaving it closes its connections
            self._announced = None

    async def changed(self) -> None:
        with anyio.move_on_after(CHANGED_SECONDS):
            await self._news.wait()

    def notified(self) -> None:
        """A controller says that there is another master."""
        self._news.set()

    # --- state -----------------------------------------------------------------------------

    async def _stored(self) -> tuple[int, int, set[int], int, list[dict[str, Any]]]:
        """Term, master, in-sync set, its version, and all replicas; zeros if the broker is not known."""
        answer = await self._ask(ControllerCode.GET_SYNC_STATE_DATA, {}, [self._broker])
        table = _json(answer).get("replicasInfoTable") or {}
        found = table.get(self._broker)
        if found is None:
            return 0, 0, set(), 0, []
        counting, others = found.get("inSyncReplicas") or [], found.get("notInSyncReplicas") or []
        in_sync = {int(row["brokerId"]) for row in counting}
        term, master = int(found.get("masterEpoch") or 0), int(found.get("masterBrokerId") or 0)
        return term, master, in_sync, int(found.get("syncStateSetEpoch") or 0), [*counting, *others]

    async def _look_at(self, number: int, address: str) -> None:
        """Ask a replica itself: a controller keeps neither its HA address nor its epoch for others."""
        request = Command.request(RequestCode.GET_BROKER_EPOCH_CACHE)
        try:
            answer = await self._peers.ask(address, request, timeout=PEER_SECONDS)
            told = parse_answer(answer.body, address, "GET_BROKER_EPOCH_CACHE")["live"]
            self._known[number] = Live.of(orjson.dumps({**told, "incarnation": NOBODY}))
        except (RemotingError, KeyError, TypeError, ValueError) as error:
            logger.debug("replica %d at %s says nothing of itself: %r", number, address, error)

    async def _alter(self, state: State, revision: int) -> int:
        numbers = sorted(number for number, _ in state.in_sync)
        fields = {"masterBrokerId": str(state.master), "masterEpoch": str(state.term)}
        body = {"syncStateSet": numbers, "syncStateSetEpoch": revision}
        answer = await self._ask(ControllerCode.ALTER_SYNC_STATE_SET, fields, body, (*OUTDATED, *NOT_NOW))
        if answer.code in NOT_NOW:
            raise ChangeRefused(f"the controller does not take {numbers} as the in-sync set: {answer.remark}")
        return answer.integer("newSyncStateSetEpoch", 0) if answer.code == ControllerAnswer.SUCCESS else 0

    async def _elect(self, state: State, *, designated: bool) -> int:
        fields = {"brokerId": str(state.master), "designateElect": str(designated).lower()}
        answer = await self._ask(ControllerCode.ELECT_MASTER, fields, None, ANY)
        if answer.code not in (ControllerAnswer.SUCCESS, ControllerAnswer.MASTER_STILL_EXIST):
            trouble = f"the controller elects nobody: {answer.remark} ({answer.code})"
            if designated:
                raise ChangeRefused(trouble)
            raise CoordinatorTrouble(
                f"{trouble}; if all that have what was acknowledged are lost, enableElectUncleanMaster=true lets it"
            )
        found = (answer.integer("masterEpoch", 0), answer.integer("masterBrokerId", 0))
        if found == (state.term, state.master):
            return answer.integer("syncStateSetEpoch", 0)
        if answer.code == ControllerAnswer.MASTER_STILL_EXIST and found[1] == self._replica:
            # It takes us for the master that we were before we started anew, whose term is over.
            self._peers.close()
        return 0

    # --- being known -----------------------------------------------------------------------

    async def _register(self, address: str) -> None:
        fields = {"appliedBrokerId": str(self._replica), "registerCheckCode": self._check_code}
        answer = await self._ask(ControllerCode.APPLY_BROKER_ID, fields, None, (ControllerAnswer.BROKER_ID_INVALID,))
        if answer.code == ControllerAnswer.BROKER_ID_INVALID:
            following = (await self._ask(ControllerCode.GET_NEXT_BROKER_ID, {})).integer("nextBrokerId", 0)
            if following == 1:
                raise CoordinatorTrouble(
                    "the controller knows no replica of this broker yet; replica 1 has to come first"
                )
            raise CoordinatorTrouble(
                f"the controller does not give this store the number {self._replica}: {answer.remark}; set another "
                f"replica, or, if {self._replica} had another store, let it forget that: mqadmin cleanBrokerMetadata"
            )
        await self._ask(ControllerCode.REGISTER_BROKER, {"brokerId": str(self._replica), "brokerAddress": address})
        self._registered = address

    async def _beat(self, live: Live) -> None:
        """Tell all controllers, so that whichever leads next knows. The one that leads now must have heard it."""
        fields = {
            "brokerAddr": live.address, "brokerId": str(self._replica), "epoch": str(live.epoch),
            "maxOffset": str(live.end), "confirmOffset": str(live.confirm),
            "heartbeatTimeoutMills": str(round(self._ttl * 1000)), "electionPriority": str(self._replica),
        }  # fmt: skip
        leader = await self._find_leader()
        async with anyio.create_task_group() as tasks:
            for address in self._controllers:
                if address != leader:
                    tasks.start_soon(self._beat_other, address, fields)
            await self._ask_leader(leader, self._request(RequestCode.BROKER_HEARTBEAT, fields, None), ())
            tasks.cancel_scope.cancel()
        self._beaten = self._clock.monotonic()

    async def _beat_other(self, address: str, fields: Mapping[str, str]) -> None:
        try:
            await self._peers.ask(address, self._request(RequestCode.BROKER_HEARTBEAT, fields, None), ANY)
        except RemotingError as error:
            logger.debug("controller %s was not told that this replica is alive: %s", address, error)

    # --- asking ----------------------------------------------------------------------------

    async def _ask(self, code: int, fields: Mapping[str, str], body: Any = None, fine: Iterable[int] = ()) -> Command:
        """
        Raises:
            CoordinatorTrouble: there is no answer, or one that is neither success nor one of ``fine``.
        """
        return await self._ask_leader(await self._find_leader(), self._request(code, fields, body), fine)

    def _request(self, code: int, fields: Mapping[str, str], body: Any) -> Command:
        names = {"clusterName": self._cluster, "brokerName": self._broker}
        now = {"invokeTime": str(self._clock.now_ms())}
        return Command.request(code, {**names, **now, **fields}, b"" if body is None else orjson.dumps(body))

    async def _ask_leader(self, leader: str, request: Command, fine: Iterable[int]) -> Command:
        try:
            answer = await self._peers.ask(leader, request, ANY)
        except RemotingError as error:
            self._leader = ""
            raise CoordinatorTrouble(f"the controller does not answer: {error}") from error
        if answer.code != ControllerAnswer.SUCCESS and answer.code not in fine:
            if answer.code == ControllerAnswer.NOT_LEADER:
                self._leader = ""
            raise CoordinatorTrouble(f"controller {leader} refuses {request.code}: {answer.remark} ({answer.code})")
        return answer

    async def _find_leader(self) -> str:
        if self._leader:
            return self._leader
        why = "none is known"
        for address in list(self._controllers):
            request = Command.request(ControllerCode.GET_METADATA_INFO)
            try:
                answer = await self._peers.ask(address, request)
            except RemotingError as error:
                why = str(error)
                continue
            self._leader = answer.ext.get("controllerLeaderAddress") or ""
            if self._leader:
                return self._leader
            why = f"{address} knows no leader"
        raise CoordinatorTrouble(f"no controller answers: {why}")


def _json(answer: Command) -> dict[str, Any]:
    try:
        found = orjson.loads(answer.body)
        return found if isinstance(found, dict) else {}
    except ValueError as error:
        raise CoordinatorTrouble(f"the controller answers {bytes(answer.body)[:100]!r}: {error}") from error
