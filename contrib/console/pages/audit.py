"""``/audit``: what was done from this console since it started."""

from __future__ import annotations

from typing import Final

from verniermq.contrib.console.view import Look, Shown, View


async def audit(look: Look) -> Shown:
    return Shown("Audit", {"rows": look.console.audit.newest()}, "verniermq plugins show audit", is_same=False)


VIEWS: Final = (View("/audit", "audit.html", audit, "Audit"),)
