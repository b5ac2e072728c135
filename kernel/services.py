"""Background work that must not die: run, and run again after a pause that grows (1, 2, 4 … 30 s).

A service belongs to a plugin; its failure is the plugin's to be counted and never the broker's end.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio

from verniermq.kernel.clock import Clock
from verniermq.kernel.hookcall import ActivePlugin
from verniermq.kernel.plugin import Service

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0


async def run_service(plugin: ActivePlugin, service: Service, clock: Clock) -> None:
    """Keep a service running until it returns by itself, its plugin is switched off, or the broker stops."""
    pause = FIRST_PAUSE
    with anyio.CancelScope() as scope:
        plugin.service_scopes.append(scope)
        while True:
            started = clock.now()
            try:
                await service.run()
                return
            except Exception:
                plugin.service_failures += 1
                if clock.now() - started > LONGEST_PAUSE:
                    pause = FIRST_PAUSE  # it ran well for a while; this is a new trouble, not the old one
                logger.exception(
                    "service failed plugin=%s service=%s failures=%d restart_in_s=%g",
                    plugin.name, service.name, plugin.service_failures, pause,
                )  # fmt: skip
                await clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
