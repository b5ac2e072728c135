"""What was done from the console, and by whom: in the log ``verniermq.audit``, and the newest on a page."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, Final

log = logging.getLogger("verniermq.audit")

KEPT: Final = 1000


class AuditTrail:
    def __init__(self) -> None:
        self._newest: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def note(self, who: str, address: str, action: str, what: str, outcome: str) -> None:
        entry = {
            "time_ms": round(time.time() * 1000), "who": who or "without an account", "address": address,
            "action": action, "what": what, "outcome": outcome,
        }  # fmt: skip
        self._newest.appendleft(entry)
        log.info("console action=%s what=%r who=%r address=%s outcome=%r", action, what, who, address, outcome)

    def newest(self) -> list[dict[str, Any]]:
        return list(self._newest)
