"""Connecting to a peer: the same connection as a server's, only that we opened it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from verniermq.kernel.errors import PeerUnreachable
from verniermq.kernel.remoting.address import parse_address
from verniermq.kernel.remoting.connection import NO_HANDLERS, Connection, Guard, Handler
from verniermq.kernel.remoting.limits import RemotingLimits


async def connect(
    address: str,
    handlers: Mapping[int, Handler] = NO_HANDLERS,
    timeout: float = 3.0,
    *,
    limits: RemotingLimits | None = None,
    guards: Sequence[Guard] = (),
    clock: Callable[[], float] = time.monotonic,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Open a connection to ``host:port``; ``handlers`` serve what the peer asks of us on it.

    With ``tls`` the frames travel inside TLS, on the same port: RocketMQ's servers look at the first byte.

    Raises:
        PeerUnreachable: nobody listens there, the name is unknown, or it took longer than ``timeout`` seconds.
    """
    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise PeerUnreachable(address, str(error)) from None
    limits = limits or RemotingLimits()
    try:
        async with asyncio.timeout(timeout):
            _, protocol = await asyncio.get_running_loop().create_connection(
                lambda: Connection(handlers, limits, guards, clock=clock).as_protocol(), host, port, ssl=tls
            )
    except TimeoutError:
        raise PeerUnreachable(address, f"no connection within {timeout:g} s") from None
    except socket.gaierror as error:
        raise PeerUnreachable(address, f"the name is unknown: {error.strerror}") from error
    except ssl.SSLError as error:
        raise PeerUnreachable(address, f"TLS failed: {error.reason or error}") from error
    except ConnectionError as error:
        if tls is None or isinstance(error, ConnectionRefusedError):
            raise PeerUnreachable(address, _reason(error)) from error
        # It took the connection and hung up on the first bytes, as one does that takes them for a bad frame.
        raise PeerUnreachable(address, "it ended the TLS handshake; perhaps it serves plain frames only") from error
    except OSError as error:
        raise PeerUnreachable(address, _reason(error)) from error
    return cast(Connection, protocol)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
