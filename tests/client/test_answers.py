"""What a client makes of answers that cannot be read: an error that says whose, and never a stall."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from verniermq.client.connection import ConnectionPool
from verniermq.client.nameservers import NameServers
from verniermq.kernel import Command, Connection, MalformedAnswer, RemotingServer, RequestCode

pytestmark = pytest.mark.anyio

DOUBLING = ",".join(['"a0":[1]', *[f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, 19)]])
QUEUES = {"brokerName": "b", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}

BODIES = {
    "no JSON": b"{",
    "a list": b"[1]",
    "nested": b'{"queueDatas":' + b"[" * 900 + b"]" * 900 + b"}",
    "doubling references": f'{{"queueDatas":{{"$ref":"$.a18"}},{DOUBLING}}}'.encode(),
    "very many queues": orjson.dumps({"queueDatas": [{**QUEUES, "readQueueNums": 3_000_000}]}),
    "fewer queues than none": orjson.dumps({"queueDatas": [{**QUEUES, "writeQueueNums": -1}]}),
    "half a queue": orjson.dumps({"queueDatas": [{"brokerName": "b"}]}),
    "a text for a list": orjson.dumps({"brokerDatas": "b"}),
}


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[str]:
    """A server that has one answer to everything."""

    def answer(request: Command, connection: Connection) -> Command:
        return request.reply(body=body)

    server = RemotingServer(dict.fromkeys(RequestCode, answer))
    port = await server.listen("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def asking(body: bytes) -> AsyncIterator[NameServers]:
    async with answering(body) as address:
        pool = ConnectionPool({})
        try:
            yield NameServers(pool, (address,), 3.0)
        finally:
            await pool.close()


@pytest.mark.parametrize("name", BODIES)
async def test_a_route_that_cannot_be_read_is_an_error_that_names_the_server(name: str) -> None:
    async with asking(BODIES[name]) as servers:
        with pytest.raises(MalformedAnswer, match=f"{servers.text} answered GET_ROUTEINFO_BY_TOPIC with a body that"):
            await servers.route("orders")


@pytest.mark.parametrize("name", ["no JSON", "a list", "nested", "doubling references"])
async def test_a_list_of_topics_that_cannot_be_read_is_an_error_that_names_the_server(name: str) -> None:
    async with asking(BODIES[name]) as servers:
        with pytest.raises(MalformedAnswer, match=f"{servers.text} answered GET_ALL_TOPIC_LIST_FROM_NAMESERVER"):
            await servers.topics()
