"""The options that every client shares: where the name servers are, and how to talk to them and the brokers.

They are keyword arguments of each client, checked by type checkers through ``Unpack``::

    Producer("orders", namesrv=["10.0.0.5:9876", "10.0.0.6:9876"], credentials=Credentials("key", "secret"))
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict

import attrs

from verniermq.client.compression import Compression
from verniermq.client.errors import ClientError
from verniermq.client.signing import Credentials

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
NAMESRV_VARIABLES: Final = ("VERNIERMQ_NAMESRV", "NAMESRV_ADDR")

Plugins: TypeAlias = str | Path | Sequence[str] | Mapping[str, Any]
"""A TOML file with a table ``[plugins]``, that table itself, or the names of the plugins."""


class ConnectionOptions(TypedDict, total=False):
    """See :class:`Options` for what each means and its default."""

    namesrv: str | Sequence[str]
    namespace: str
    credentials: Credentials | None
    tls: bool | ssl.SSLContext
    instance: str
    request_timeout: float
    connect_timeout: float
    heartbeat_interval: float
    route_interval: float
    plugins: Plugins


def name_servers(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Addresses from one text or several; from the environment, or the default, if there are none.

    Raises:
        ClientError: there is none in what was given.
    """
    if given is None:
        given = next((os.environ[name] for name in NAMESRV_VARIABLES if os.environ.get(name)), DEFAULT_NAMESRV)
    texts = [given] if isinstance(given, str) else list(given)
    found = tuple(address.strip() for text in texts for address in text.replace(",", ";").split(";") if address.strip())
    if not found:
        raise ClientError(f"namesrv={given!r} names no name server; expected host:port, such as {DEFAULT_NAMESRV!r}")
    return found


@attrs.frozen(kw_only=True)
class Options:
    """The shared options, with their defaults (RocketMQ: ``ClientConfig``)."""

    namesrv: tuple[str, ...] = attrs.field(default=None, converter=name_servers)
    """``host:port`` of each name server; one text may name several, separated by ``;``."""
    namespace: str = ""
    """Put before every topic and group as ``namespace%name``."""
    credentials: Credentials | None = None
    """Access key and secret, for brokers with access control."""
    tls: bool | ssl.SSLContext = False
    """``True`` checks certificates against the system's authorities; a context says it in detail."""
    instance: str = ""
    """The second half of the client id ``ip@instance``; made up if empty."""
    request_timeout: float = 3.0
    """Seconds that name servers and brokers have to answer, where no other timeout is said."""
    connect_timeout: float = 3.0
    heartbeat_interval: float = 30.0
    route_interval: float = 30.0
    """Seconds between two looks at where the topics in use live."""
    plugins: Plugins = ()

    def ssl_context(self) -> ssl.SSLContext | None:
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None


class ProducerOptions(ConnectionOptions, total=False):
    """The keyword arguments of a :class:`~verniermq.client.Producer`, for classes that pass them on."""

    send_timeout: float
    timeout_per_try: float | None
    retries: int
    async_retries: int
    retry_another_broker_when_not_store_ok: bool
    compress_over: int
    compression: Compression
    max_message_size: int
    default_queues: int
    max_in_flight: int
    fault: str
