"""A plugin of the campaign: how long a broker's loop is held between two of its turns, in processor time of its thread.

A neighbour's wait on a clock says what a peer sees, and depends on what else the machine does. The processor time that
the loop's thread spends before it comes round again does not: it is what the broker itself does for one turn. What it
cannot see is a thread that sleeps in a system call, as for a disk; the neighbour's wait shows that.

While it watches, the loop never sleeps. ``WATCH`` begins, and says what was seen when it ends; the longest hold is
reported with the stack that a second thread found after :data:`SAMPLED` of it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from typing import Any, ClassVar, Final

import attrs

from verniermq.kernel import Command, Connection, Context, Declaration, NoConfig, Registry

WATCH: Final = 9_199
SAMPLED: Final = 0.03
"""Seconds of a hold after which its stack is taken."""
INTERVAL: Final = 0.005


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="Measures how long the loop is held.", requests=(WATCH,))
    config: NoConfig
    broker: Context
    _watching: bool = False
    _last: float = 0.0
    _longest: float = 0.0
    _turns: int = 0
    _stack: str = ""
    """Of the longest hold."""
    _found: str = ""
    """Of this hold."""

    def setup(self, registry: Registry) -> None:
        registry.handler(WATCH, self._serve)

    def _serve(self, request: Command, connection: Connection) -> Command:
        if request.text("do") == "begin":
            self._begin()
            return request.reply()
        self._watching = False
        seen = {"held_ms": f"{self._longest * 1000:.3f}", "turns": str(self._turns)}
        return request.reply(0, seen, self._stack.encode())

    def _begin(self) -> None:
        self._longest, self._turns, self._stack, self._found = 0.0, 0, "", ""
        self._watching = True
        self._last = time.thread_time()
        ident = threading.get_ident()
        threading.Thread(target=self._look, args=(ident,), daemon=True).start()
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        now = time.thread_time()
        held = now - self._last
        if held > self._longest:
            self._longest, self._stack = held, self._found
        self._found = ""
        self._last = now
        self._turns += 1
        if self._watching:
            asyncio.get_running_loop().call_soon(self._turn)

    def _look(self, ident: int) -> None:
        clock = time.pthread_getcpuclockid(ident)
        while self._watching:
            if not self._found and time.clock_gettime(clock) - self._last > SAMPLED:
                frame: Any = sys._current_frames().get(ident)
                self._found = "".join(traceback.format_stack(frame)[-8:])
            time.sleep(INTERVAL)
