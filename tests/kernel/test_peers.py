"""Other servers that are asked something: routes, masters, and errors that say who did not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from verniermq.kernel import Command, PeerUnreachable, RequestCode, ResponseCode, TopicNotFound, UnexpectedAnswer
from verniermq.protocol.peers import Peers
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

NOBODY = "127.0.0.1:1"
MISSING = Command.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "missing"})


async def test_the_first_name_server_that_answers_tells_the_masters(tmp_path: Path) -> None:
    async with (
        running_broker(store=tmp_path / "store") as broker,
        Peers(f"{NOBODY}; {broker.name_servers[0]}") as peers,
    ):
        assert await peers.masters() == {broker.name: broker.address}


async def test_a_topic_has_a_route_or_is_not_found(tmp_path: Path) -> None:
    async with running_broker(store=tmp_path / "store") as broker, Peers(broker.name_servers) as peers:
        route = await peers.route("TBW102")

        assert [data["brokerName"] for data in route["queueDatas"]] == [broker.name]
        with pytest.raises(TopicNotFound, match="missing"):
            await peers.route("missing")


async def test_without_a_name_server_that_can_be_reached_the_last_error_is_raised() -> None:
    async with Peers([NOBODY]) as peers:
        with pytest.raises(PeerUnreachable, match=NOBODY):
            await peers.masters()
    with pytest.raises(PeerUnreachable, match="none is known"):
        await Peers().masters()


async def test_an_answer_that_is_no_success_is_an_error_unless_it_is_expected(tmp_path: Path) -> None:
    async with running_broker(store=tmp_path / "store") as broker, Peers() as peers:
        with pytest.raises(UnexpectedAnswer, match="GET_TOPIC_CONFIG"):
            await peers.ask(broker.address, MISSING)
        answer = await peers.ask(broker.address, MISSING, {ResponseCode.TOPIC_NOT_EXIST})

        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_server_is_asked_on_one_connection_which_is_opened_again_when_it_is_gone(tmp_path: Path) -> None:
    async with running_broker(store=tmp_path / "store") as broker, Peers() as peers:
        request = Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        await asyncio.gather(*(peers.ask(broker.address, request) for _ in range(3)))
        (connection,) = peers._connections.values()
        connection.close()

        assert (await peers.ask(broker.address, request)).code == ResponseCode.SUCCESS
