"""Where a process of the campaign runs."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Host:
    address: str
    within: Sequence[str] = ()
    """The command through which a process is started there."""


LOOPBACK = Host("127.0.0.1")
