"""Telling systemd how the broker is: ready, alive, stopping (``Type=notify``, ``WatchdogSec=``).

systemd names a socket in ``NOTIFY_SOCKET`` and wants a sign of life within ``WATCHDOG_USEC`` microseconds. Without them
nothing is done. The loop itself tells that it is alive, so a loop that hangs is restarted.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import anyio


class Notifier:
    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        wanted = environ.get("WATCHDOG_USEC", "")
        meant_for = environ.get("WATCHDOG_PID", "")
        is_ours = not meant_for or meant_for == str(os.getpid())
        self.interval = int(wanted) / 1e6 / 2 if wanted.isdecimal() and is_ours and self._address else 0.0
        """Seconds between two signs of life; 0 if none are wanted."""

    def tell(self, state: str) -> None:
        """Say something to systemd, such as ``READY=1``; if it cannot hear, nothing is lost."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            try:
                sender.connect(address)
                sender.send(state.encode())
            except OSError:
                pass  # the broker goes on without being watched

    async def keep_alive(self) -> None:
        """Give signs of life for ever, if systemd wants them."""
        while self.interval:
            self.tell("WATCHDOG=1")
            await anyio.sleep(self.interval)
