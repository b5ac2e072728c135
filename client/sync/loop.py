"""The event loop behind blocking calls: one thread per process, started with the first client.

The thread ends with the program: it watches the main thread, and closes what is still open when that has ended. A
forked child has no such thread; it gets one of its own with its first call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from importlib.util import find_spec
from typing import Final, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from verniermq.client.forks import after_fork

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

WATCH_SECONDS: Final = 0.2
CLOSE_SECONDS: Final = 10.0


class LoopThread:
    """A thread with an event loop, and a way into it."""

    def __init__(self) -> None:
        self._ready: Future[BlockingPortal] = Future()
        self._closers: dict[int, Callable[[], Awaitable[None]]] = {}
        self._thread = threading.Thread(target=self._run, name="verniermq client loop")
        self._thread.start()
        self._portal = self._ready.result()

    def _run(self) -> None:
        options = {"use_uvloop": find_spec("uvloop") is not None}
        try:
            anyio.run(self._main, backend="asyncio", backend_options=options)
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                logger.exception("the client's event loop failed")

    async def _main(self) -> None:
        async with BlockingPortal() as portal:
            self._ready.set_result(portal)
            while threading.main_thread().is_alive():  # noqa: ASYNC110 - nothing else tells when it ends
                await anyio.sleep(WATCH_SECONDS)
            with anyio.move_on_after(CLOSE_SECONDS):
                for close in list(self._closers.values()):
                    await close()
            await portal.stop(cancel_remaining=True)

    def call(self, function: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
        """Run an async function in the loop and wait for what it returns or raises."""
        return self._portal.call(lambda: function(*arguments, **named))

    def call_plain(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a plain function in the loop's thread, for what is not safe from others."""
        return self._portal.call(lambda: function(*arguments, **named))

    def at_exit(self, owner: object, close: Callable[[], Awaitable[None]]) -> None:
        """Close something when the program ends, unless :meth:`forget` comes first."""
        self._closers[id(owner)] = close

    def forget(self, owner: object) -> None:
        self._closers.pop(id(owner), None)


_lock = threading.Lock()
_thread: LoopThread | None = None


def loop_thread() -> LoopThread:
    """The loop of this process."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = LoopThread()
        return _thread


def _after_fork() -> None:
    global _lock, _thread
    # Somebody may have held the lock while the process was forked, and there is no thread here.
    _lock = threading.Lock()
    _thread = None


after_fork(_after_fork)
