"""Clients that live as long as a Starlette or FastAPI application.

::

    app = FastAPI(lifespan=lifespan(producer=Producer("shop"), consumers=[billing]))

    @app.post("/orders")
    async def order(producer: Annotated[Producer, Depends(get_producer)]): ...
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import anyio
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from verniermq.client import Producer, PushConsumer
from verniermq.client.errors import ClientError

__all__ = ["get_producer", "lifespan", "ready"]

logger = logging.getLogger(__name__)

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(
    *, producer: Producer | None = None, consumers: Sequence[PushConsumer] = (), inner: Lifespan | None = None
) -> Lifespan:
    """A lifespan that starts and closes clients, around another one if the application has it.

    The application does not start if one of them cannot. A consumer that is stopped later makes :func:`ready` say so.

    Args:
        inner: the lifespan of the application itself; its state is passed on
    """

    @asynccontextmanager
    async def around(app: Starlette) -> AsyncIterator[Any]:
        app.state.verniermq_producer = producer
        stopped: list[str] = []
        app.state.verniermq_stopped = stopped
        async with AsyncExitStack() as stack:
            if producer is not None:
                await stack.enter_async_context(producer)
            for consumer in consumers:
                await consumer.start()
                stack.push_async_callback(consumer.close)
            state = await stack.enter_async_context(inner(app)) if inner is not None else None
            async with anyio.create_task_group() as watching:
                for consumer in consumers:
                    watching.start_soon(_watch, consumer, stopped)
                yield state
                watching.cancel_scope.cancel()

    return around


async def _watch(consumer: PushConsumer, stopped: list[str]) -> None:
    try:
        await consumer.run()
    except ClientError as error:
        logger.error("consumer stopped group=%s reason=%s", consumer.group, error)
    stopped.append(consumer.group)


def get_producer(connection: HTTPConnection) -> Producer:
    """The application's producer; a dependency for FastAPI.

    Raises:
        ClientError: its lifespan has none.
    """
    producer: Producer | None = getattr(connection.app.state, "verniermq_producer", None)
    if producer is None:
        raise ClientError("this application has no producer; give one to lifespan(producer=…)")
    return producer


async def ready(request: Request) -> Response:
    """An endpoint for readiness: 503 with their names when consumers have stopped."""
    stopped = getattr(request.app.state, "verniermq_stopped", [])
    return JSONResponse({"stopped": list(stopped)}, status_code=503 if stopped else 200)
