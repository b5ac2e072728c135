"""The lifespan with Starlette's own test client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from verniermq.client import Message, Producer, PushConsumer, ReceivedMessage
from verniermq.client.errors import ClientError, NameServerUnreachable
from verniermq.contrib.starlette import get_producer, lifespan, ready
from verniermq.testing import BrokerProcess


async def send(request: Request) -> JSONResponse:
    result = await get_producer(request).send(Message("orders", b"x"))
    return JSONResponse({"status": result.status.name, "state": getattr(request.state, "mine", None)})


ROUTES = [Route("/send", send), Route("/readyz", ready)]


def test_the_lifespan_of_the_application_is_kept(verniermq_broker: BrokerProcess) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def mine(app: Starlette) -> AsyncIterator[dict[str, str]]:
        seen.append("begins")
        yield {"mine": "passed on"}
        seen.append("ends")

    producer = Producer("shop", namesrv=verniermq_broker.namesrv)
    app = Starlette(routes=ROUTES, lifespan=lifespan(producer=producer, inner=mine))
    with TestClient(app) as client:
        answer = client.get("/send").json()

    assert answer == {"status": "SEND_OK", "state": "passed on"}
    assert seen == ["begins", "ends"]


def test_a_consumer_that_stopped_makes_the_application_not_ready(verniermq_broker: BrokerProcess) -> None:
    consumer = PushConsumer("billing", namesrv=verniermq_broker.namesrv)
    consumer.subscribe("orders")

    @consumer.on_message
    async def handle(message: ReceivedMessage) -> None: ...

    app = Starlette(routes=ROUTES, lifespan=lifespan(consumers=[consumer]))
    with TestClient(app) as client:
        before = client.get("/readyz")
        assert client.portal is not None
        client.portal.call(consumer.close)
        after = client.get("/readyz")

    assert (before.status_code, before.json()) == (200, {"stopped": []})
    assert (after.status_code, after.json()) == (503, {"stopped": ["billing"]})


def test_an_application_without_a_broker_does_not_start() -> None:
    app = Starlette(lifespan=lifespan(producer=Producer("shop", namesrv="127.0.0.1:1")))

    with pytest.raises(NameServerUnreachable), TestClient(app):
        pass


def test_an_application_without_a_producer_says_so() -> None:
    with (
        TestClient(Starlette(routes=ROUTES, lifespan=lifespan())) as client,
        pytest.raises(ClientError, match="no producer"),
    ):
        client.get("/send")
