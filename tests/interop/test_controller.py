"""Brokers that choose their master through Apache's controller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import attrs
import orjson
import pytest

from tests.plugins.ha.coordinators import check_coordinator, live
from verniermq.kernel import Command, Connection, RequestCode, SystemClock
from verniermq.kernel.remoting.server import RemotingServer
from verniermq.plugins.ha.controller import Controller
from verniermq.plugins.ha.coordinator import CoordinatorTrouble, Live

from .controller import ApacheController

pytestmark = pytest.mark.timeout(600)

TTL = 2.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheController]:
    with ApacheController(tmp_path_factory.mktemp("controller")) as server:
        yield server


def replica(server: ApacheController, broker: str, number: int, store: str = "") -> Controller:
    check_code = store or f"store{number}"
    return Controller([server.address], "c", broker, number, ttl=TTL, check_code=check_code, clock=SystemClock())


@asynccontextmanager
async def brokers(*numbers: int) -> AsyncIterator[dict[int, Live]]:
    """What replicas say of themselves when they are asked; a controller does not keep it for others."""
    said: dict[int, Live] = {}
    async with AsyncExitStack() as stack:
        for number in numbers:

            def answer(request: Command, connection: Connection, number: int = number) -> Command:
                return request.reply(body=orjson.dumps({"live": attrs.asdict(said[number])}))

            listening = RemotingServer({RequestCode.GET_BROKER_EPOCH_CACHE: answer})
            await stack.enter_async_context(listening)
            port = await listening.listen("127.0.0.1", 0)
            said[number] = attrs.evolve(live(number), address=f"127.0.0.1:{port}")
        yield said


def test_a_controller_does_what_a_coordinator_must(server: ApacheController) -> None:
    async def work() -> None:
        async with brokers(1, 2) as said:
            await check_coordinator(lambda number: replica(server, "b", number), "", said.__getitem__)

    anyio.run(work)


def test_another_store_does_not_get_a_replicas_number(server: ApacheController) -> None:
    async def work() -> None:
        early, one, other = replica(server, "owned", 2), replica(server, "owned", 1), replica(server, "owned", 1, "new")
        with pytest.raises(CoordinatorTrouble, match="replica 1 has to come first"):
            await early.announce(2, live(2))
        await one.announce(1, live(1))
        with pytest.raises(CoordinatorTrouble, match="does not give this store the number 1"):
            await other.announce(1, live(1))
        for found in (early, one, other):
            await found.leave()

    anyio.run(work)
