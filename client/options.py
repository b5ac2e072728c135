"""The options that every client shares: where the name servers are, and how to talk to them and the brokers.

They are keyword arguments of each client, checked by type checkers through ``Unpack``::

    Producer("orders", namesrv=["10.0.0.5:9876", "10.0.0.6:9876"], credentials=Credentials("key", "secret"))
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict

import attrs

from verniermq.client.compression import Compression
from verniermq.client.credentials import Credentials
from verniermq.client.errors import ClientError
from verniermq.client.java import instead_of_option, shown
from verniermq.protocol.inflate import MAX_BODY

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
    client_ip: str
    request_timeout: float
    connect_timeout: float
    heartbeat_interval: float
    route_interval: float
    max_body_size: int
    plugins: Plugins


LONGEST_TIMEOUT: Final = 999.0
"""Seconds; a larger number was meant as milliseconds."""


class UnknownOption(ClientError, TypeError):
    """A keyword argument that no client has."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"{what} has no option {name!r}; {instead_of_option(name, known)}")


def check_numbers(least: int, **values: object) -> None:
    """
    Raises:
        ClientError: one of them is no whole number, or too small.
    """
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ClientError(f"{name}={shown(value)}, expected a whole number")
        if value < least:
            raise ClientError(f"{name}={value}, expected at least {least}")


def check_seconds(**values: object) -> None:
    """
    Raises:
        ClientError: one of them is no time that anybody would wait.
    """
    for name, value in values.items():
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ClientError(f"{name}={shown(value)}, expected seconds, more than 0")
        if value > LONGEST_TIMEOUT:
            raise ClientError(f"{name}={value} seconds; times are in seconds here: {value} ms are {value / 1000:g}")


def name_servers(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Addresses from one text or several; from the environment, or the default, if there are none.

    Raises:
        ClientError: there is none in what was given.
    """
    if given is None:
        given = next((os.environ[name] for name in NAMESRV_VARIABLES if os.environ.get(name)), DEFAULT_NAMESRV)
    if not isinstance(given, str) and not (
        isinstance(given, Sequence) and all(isinstance(address, str) for address in given)
    ):
        raise ClientError(f"namesrv={shown(given)}, expected 'host:port', or a list of such texts")
    texts = [given] if isinstance(given, str) else list(given)
    found = tuple(address.strip() for text in texts for address in text.replace(",", ";").split(";") if address.strip())
    if not found:
        raise ClientError(f"namesrv={given!r} names no name server; expected host:port, such as {DEFAULT_NAMESRV!r}")
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or "//" in address:
            raise ClientError(f"namesrv={given!r}: {address!r} is no host:port, such as {DEFAULT_NAMESRV!r}")
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
    client_ip: str = ""
    """The first half of the client id; the machine's own address if empty. Strategies that go by where a client is
    look at it, so it may be any name, such as ``IDC1-client`` (RocketMQ: ``clientIP``)."""
    request_timeout: float = 3.0
    """Seconds that name servers and brokers have to answer, where no other timeout is said."""
    connect_timeout: float = 3.0
    heartbeat_interval: float = 30.0
    route_interval: float = 30.0
    """Seconds between two looks at where the topics in use live."""
    max_body_size: int = MAX_BODY
    """Bytes that a compressed body may inflate to, 64 MiB. Producers take up to 4 MiB unless told otherwise, so a
    larger body is a mistake or an attack; it is never in memory as a whole, and its message becomes a dead letter."""
    plugins: Plugins = ()

    def __attrs_post_init__(self) -> None:
        """
        Raises:
            ClientError: a value that cannot be meant.
        """
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            raise ClientError(
                f"credentials is a {type(self.credentials).__name__}, expected Credentials(access_key, secret_key)"
            )
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise ClientError(f"tls={shown(self.tls)}, expected True, or an ssl.SSLContext with the certificates")
        for name in ("namespace", "instance", "client_ip"):
            if not isinstance(getattr(self, name), str):
                raise ClientError(f"{name}={shown(getattr(self, name))}, expected a text")
        check_seconds(
            request_timeout=self.request_timeout, connect_timeout=self.connect_timeout,
            heartbeat_interval=self.heartbeat_interval, route_interval=self.route_interval,
        )  # fmt: skip
        check_numbers(1, max_body_size=self.max_body_size)

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
