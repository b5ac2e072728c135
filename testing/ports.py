"""A port that stays a test's own while nothing listens there: between a crash and the start after it.

A port that was only found free can be gone by then: the system gives it to the next socket that asks for any.
"""

from __future__ import annotations

import socket
import weakref


def held_port(owner: object) -> int:
    """A free port of the loopback address, kept for as long as ``owner`` lives.

    Its socket is bound and does not listen: connections are refused, the system gives the port to no other socket, and
    whoever names it, and allows the reuse of addresses as servers do, can listen there.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    weakref.finalize(owner, sock.close)
    port: int = sock.getsockname()[1]
    return port
