"""What the blocking clients share: an async client in the loop's thread, and calls into it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, ParamSpec, Self, TypeVar

from verniermq.client.base import Client
from verniermq.client.errors import NotRunning, OtherProcess
from verniermq.client.forks import after_fork
from verniermq.client.java import JavaNames
from verniermq.client.sync.loop import loop_thread

C = TypeVar("C", bound=Client)
T = TypeVar("T")
P = ParamSpec("P")

BLOCK: Final = "with"


_clients: weakref.WeakSet[SyncClient[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for client in _clients:
        client._was_forked()


after_fork(_after_fork)


class SyncClient(JavaNames, Generic[C]):
    """A blocking client; a context manager.

    Producers and administrators that were started before a fork start again in the child with their first call there.
    Consumers do not: a child that should consume too makes its own, so that nobody joins a group by accident.
    """

    restarts_after_fork = True

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._client: C = self._made()
        self._pid = 0
        self._lock = threading.Lock()
        _clients.add(self)

    def _made(self) -> C:
        client = self._make()
        client.statement = BLOCK
        return client

    def _was_forked(self) -> None:
        self._lock = threading.Lock()  # a thread that is not here may have held the old one

    def start(self) -> Self:
        """Connect. ``with`` does it too."""
        loop = loop_thread()
        loop.call(self._client.start)
        loop.at_exit(self, self._client.close)
        self._pid = os.getpid()
        return self

    def close(self) -> None:
        """Finish what is under way, say goodbye, and close the connections. A second call does nothing."""
        if self._pid == os.getpid():
            loop = loop_thread()
            loop.call(self._client.close)
            loop.forget(self)

    def __enter__(self) -> Self:
        return self.start()

    if not TYPE_CHECKING:  # or type checkers would take it for an asynchronous context manager

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} blocks; write 'with', or take it from verniermq.client for 'async with'"
            )

        async def __aexit__(self, *error: object) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> C:
        """The async client, started again if this is a child of the process that started it.

        Raises:
            NotRunning: it was never started.
            OtherProcess: it was started in the parent, and does not start again by itself.
        """
        if self._pid == os.getpid():
            return self._client
        if not self._pid:
            raise NotRunning(type(self).__name__, "was not started", BLOCK)
        if not self.restarts_after_fork:
            raise OtherProcess(type(self).__name__, self._pid)
        with self._lock:
            if self._pid != os.getpid():
                self._client = self._made()
                self.start()
        return self._client

    def _call(self, function: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
        return loop_thread().call(function, *arguments, **named)

    def _plainly(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return loop_thread().call_plain(function, *arguments)
