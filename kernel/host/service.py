"""Background work that must not die: run, and run again after a pause that grows (1, 2, 4 … 30 s).

A service belongs to a plugin; its failure is the plugin's to be counted and never the broker's end. The broker's own
work is kept running in the same way, and so a single bad request or row can stop neither.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from verniermq.kernel.clock import Clock
from verniermq.kernel.host.hookcall import ActivePlugin
from verniermq.kernel.host.registry import Service
from verniermq.kernel.role import Roles

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0


async def keep_running(
    work: Callable[[], Awaitable[None]], clock: Clock, failed: Callable[[Exception, float], None]
) -> None:
    """Run until it returns by itself. ``failed`` is told of each exception, and after which pause it runs again."""
    pause = FIRST_PAUSE
    while True:
        started = clock.monotonic()
        try:
            await work()
            return
        except Exception as error:
            if clock.monotonic() - started > LONGEST_PAUSE:
                pause = FIRST_PAUSE  # it ran well for a while; this is a new trouble, not the old one
            failed(error, pause)
        await clock.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def refusal_of_the_system(error: BaseException) -> OSError | None:
    """What the system said, if that is all there is to say: a full disk is no mistake in a program to be traced."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, OSError) else None


async def run_service(plugin: ActivePlugin, service: Service, clock: Clock, roles: Roles) -> None:
    """Keep a service running until it returns by itself, its plugin is switched off, or the broker stops."""

    def failed(error: Exception, pause: float) -> None:
        plugin.service_failures += 1
        refused = refusal_of_the_system(error)
        logger.error(
            "service failed plugin=%s service=%s failures=%d restart_in_s=%g%s",
            plugin.name, service.name, plugin.service_failures, pause, f": {refused}" if refused else "",
            exc_info=None if refused else error,
        )  # fmt: skip

    with anyio.CancelScope() as scope:
        plugin.service_scopes.append(scope)
        work = partial(roles.while_master, service.run) if service.master_only else service.run
        await keep_running(work, clock, failed)


class Tasks:
    """Where tasks may be started that nobody waits for. One that fails is logged, and ends nothing but itself."""

    def __init__(self, task_group: TaskGroup) -> None:
        self._task_group = task_group
        self.failures = 0

    def start_soon(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._task_group.start_soon(self._run, work, arguments)

    async def _run(self, work: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
        try:
            await work(*arguments)
        except Exception:
            self.failures += 1
            logger.exception("task failed task=%r failures=%d", work, self.failures)
