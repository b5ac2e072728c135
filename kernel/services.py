"""Background work that must not die: run, and run again after a pause that grows (1, 2, 4 … 30 s).

A service belongs to a plugin; its failure is the plugin's to be counted and never the broker's end.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio

from verniermq.kernel.plugin import Service

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0


async def run_service(plugin: str, service: Service) -> None:
    """Keep a service running until it returns by itself or the broker stops."""
    pause = FIRST_PAUSE
    while True:
        started = anyio.current_time()
        try:
            await service.run()
            return
        except Exception:
            if anyio.current_time() - started > LONGEST_PAUSE:
                pause = FIRST_PAUSE  # it ran well for a while; this is a new trouble, not the old one
            logger.exception("service failed plugin=%s service=%s restart_in_s=%g", plugin, service.name, pause)
            await anyio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
