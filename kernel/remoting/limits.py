"""How much one peer, and all of them together, may ask of the remoting layer.

Every limit is there because without it one peer could take the memory or the time of all the others.
"""

from __future__ import annotations

from typing import Final

import attrs

MIB: Final = 1024 * 1024

_at_least_one = attrs.validators.ge(1)


@attrs.frozen
class RemotingLimits:
    """The limits of a server and of each of its connections."""

    max_frame_size: int = attrs.field(default=16 * MIB, validator=attrs.validators.in_(range(64, 2**31)))
    """Bytes of a whole frame with its length word; RocketMQ's clients take no larger one either."""
    max_header_size: int = attrs.field(default=MIB, validator=_at_least_one)
    """Bytes of a frame's header. It holds a message's properties, 32 KiB at most, never a body."""
    max_connections: int = attrs.field(default=10_000, validator=_at_least_one)
    """One more is closed as soon as it is accepted."""
    idle_seconds: float = attrs.field(default=120.0, validator=attrs.validators.gt(0))
    """A connection on which nothing was read or written for so long is closed."""
    max_inflight_per_connection: int = attrs.field(default=10_000, validator=_at_least_one)
    """Requests of one peer that may be worked on at a time; the next is told that the broker is busy."""
    write_buffer_high: int = attrs.field(default=MIB, validator=_at_least_one)
    """Unsent bytes above which no more requests are taken from this peer until it has read its answers."""
    write_buffer_max: int = attrs.field(default=64 * MIB, validator=_at_least_one)
    """Unsent bytes above which the connection is closed: the peer has stopped reading."""
    listen_backlog: int = attrs.field(default=1024, validator=_at_least_one)
    """Connections that the operating system may hold before they are accepted."""
