"""The kernel's own settings: one frozen class for each section of ``broker.toml``, and all of them together.

Each default suits a laptop and each limit keeps out what could not work. Plugins have their settings with
themselves; here their tables ``[plugins.<name>]`` are kept as they were read, until the plugin host knows the class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import attrs

from verniermq.kernel.config.fields import setting
from verniermq.kernel.config.units import GIB, KIB, MIB, Duration, Size, format_size, parse_duration

JAVA_INT_MAX = 2**31 - 1
"""Apache RocketMQ maps its files with 32-bit sizes; what we write, it has to be able to open."""

# With @, since the strategy machine_room reads a broker's room from its name: shanghai@broker-a.
_NAME = re.compile(r"[A-Za-z0-9_.%|@-]{1,127}")
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)"
_HOST_AND_PORT = re.compile(rf"{_HOST}:([0-9]{{1,5}})")
_HOST_MAYBE_PORT = re.compile(rf"{_HOST}(?::([0-9]{{1,5}}))?")


def _a_name(text: str) -> str | None:
    return None if _NAME.fullmatch(text) else "1 to 127 letters, digits or any of _ - . % | @"


def _an_address(text: str, pattern: re.Pattern[str]) -> bool:
    match = pattern.fullmatch(text)
    return match is not None and 0 < int(match[1] or 1) <= 65535


def _advertised(text: str) -> str | None:
    fits = text == "" or _an_address(text, _HOST_MAYBE_PORT)
    return None if fits else 'an address such as "10.0.0.5" or "mq.example.org:10911", or "" to have it worked out'


def _name_servers(addresses: tuple[str, ...]) -> str | None:
    fits = all(_an_address(address, _HOST_AND_PORT) for address in addresses)
    return None if fits else 'addresses with ports, such as ["10.0.0.5:9876"], or [] for the embedded one'


def _not_empty(text: str) -> str | None:
    return None if text.strip() else "a text that is not empty"


DAY = parse_duration("1d")

RECORD_OVERHEAD = 512
"""Bytes that a record may need beside body and properties: its fixed fields, the topic, and the end-of-file mark."""


@attrs.frozen
class BrokerSettings:
    """Who this broker is and where it listens."""

    name: str = setting("broker-a", "This broker's name; a master and its slaves share one.", check=_a_name)
    cluster: str = setting("DefaultCluster", "The cluster that this broker belongs to.", check=_a_name)
    id: int = setting(0, "0 for a master, more for its slaves.", at_least=0, at_most=2**63 - 1)
    host: str = setting(
        "127.0.0.1", 'The address to listen on; "0.0.0.0" for every network of this machine.', check=_not_empty
    )
    port: int = setting(10911, "The port to listen on; 0 takes any that is free.", at_least=0, at_most=65535)
    advertise: str = setting(
        "", 'The address that clients are told to use; "" has it worked out at start.', check=_advertised
    )
    namesrv: tuple[str, ...] = setting(
        (), "Name servers to register with, as host:port; [] for the embedded one.", check=_name_servers
    )
    vip_port: bool = setting(True, "Whether to listen on port - 2 as well, which old Java clients send to.")


@attrs.frozen
class StoreSettings:
    """The files: where they are, how large they grow, and when they are flushed to disk."""

    path: str = setting(
        "store", "The folder of the store; a relative one starts where the broker was started.", check=_not_empty
    )
    flush: Literal["async", "sync"] = setting(
        "async", 'When a send is acknowledged: "async" once written, "sync" once it is on the disk.'
    )
    flush_interval: Duration = setting(
        parse_duration("500ms"), "How often an asynchronous flush runs.", at_least=0.001, at_most=3600
    )
    flush_pages: int = setting(
        4, "How many pages of 4 KiB must have been written before it does.", at_least=0, at_most=2**20
    )
    flush_timeout: Duration = setting(
        parse_duration("5s"),
        "How long a send waits for the disk before FLUSH_DISK_TIMEOUT.",
        at_least=0.001,
        at_most=3600,
    )
    segment_size: Size = setting(
        Size(GIB),
        "The size of one commit-log file; fixed for the life of a store.",
        at_least=4 * KIB,
        at_most=JAVA_INT_MAX,
    )
    queue_entries: int = setting(
        300_000,
        "How many messages one consume-queue file lists; fixed as well.",
        at_least=1,
        at_most=JAVA_INT_MAX // 20,
    )
    max_message_size: Size = setting(
        Size(4 * MIB), "The largest message that is taken, body and properties together.", at_least=1, at_most=128 * MIB
    )
    max_batch: int = setting(8192, "The most messages in one batch.", at_least=1, at_most=65536)
    checkpoint_interval: Duration = setting(
        parse_duration("1s"), "How often the checkpoint is written; recovery starts there.", at_least=0.01, at_most=3600
    )
    mapped_queue_files: int = setting(
        1000, "How many consume-queue files stay mapped; the least used are closed.", at_least=1, at_most=10**6
    )

    def __attrs_post_init__(self) -> None:
        if self.max_message_size + RECORD_OVERHEAD > self.segment_size:
            raise ValueError(
                f"max_message_size = {format_size(self.max_message_size)} does not fit into "
                f"segment_size = {format_size(self.segment_size)}; lower the first or raise the second, "
                f"which needs {RECORD_OVERHEAD} bytes more than the message"
            )


@attrs.frozen
class TopicSettings:
    """Topics."""

    auto_create: bool = setting(True, "Whether the first send to an unknown topic creates it.")
    default_queues: int = setting(
        8, "The most queues that such a topic gets; clients ask for 4.", at_least=1, at_most=1024
    )
    auto_create_limit: int = setting(
        30_000, "With so many topics sends create no more; an administrator still can.", at_least=0, at_most=10**7
    )
    auto_create_per_peer: int = setting(
        20_000, "How many topics sends from one client address may create.", at_least=0, at_most=10**7
    )
    max_topics: int = setting(100_000, "How many topics there may be.", at_least=1, at_most=10**7)
    max_queues: int = setting(500_000, "How many queues they may have together.", at_least=1, at_most=10**8)
    max_queues_per_topic: int = setting(4096, "How many queues one topic may have.", at_least=1, at_most=65536)


@attrs.frozen
class GroupSettings:
    """Consumer groups."""

    auto_create: bool = setting(True, "Whether an unknown consumer group is created when it first appears.")
    auto_create_limit: int = setting(
        30_000, "With so many groups no more are created so; an administrator still can.", at_least=0, at_most=10**7
    )
    auto_create_per_peer: int = setting(
        20_000, "How many groups clients of one address may create so.", at_least=0, at_most=10**7
    )
    max_groups: int = setting(100_000, "How many groups there may be.", at_least=1, at_most=10**7)


@attrs.frozen
class PullSettings:
    """What one pull may ask for, and how long it may wait."""

    max_messages: int = setting(1024, "The most messages in one answer.", at_least=1, at_most=65536)
    max_bytes: Size = setting(
        Size(MIB), "The most bytes in one answer; a single larger message still goes.", at_least=1, at_most=128 * MIB
    )
    max_wait: Duration = setting(
        parse_duration("25s"), "How long a pull may be held; clients give up after 30s.", at_least=0, at_most=3600
    )
    max_scan: int = setting(
        1024, "How many queue entries one filtered pull looks at before it answers.", at_least=1, at_most=10**7
    )
    max_held: int = setting(
        100_000, "How many pulls may wait for messages at a time; more are refused.", at_least=1, at_most=10**7
    )
    max_held_per_connection: int = setting(
        10_000, "The same for the pulls of one connection.", at_least=1, at_most=10**7
    )
    verify_old: bool = setting(
        True,
        "Compare bodies that were written before the start, or long ago, with their checksums; a damaged message is "
        "logged and left out.",
    )


@attrs.frozen
class RemotingSettings:
    """Connections and frames."""

    max_frame_size: Size = setting(
        Size(16 * MIB), "The largest frame; Apache's clients refuse more than 16MiB.", at_least=KIB, at_most=GIB
    )
    max_header_size: Size = setting(Size(MIB), "The largest header of a frame.", at_least=KIB, at_most=2**24 - 1)
    max_connections: int = setting(
        10_000, "How many connections are served; more are closed at once.", at_least=1, at_most=10**6
    )
    idle_timeout: Duration = setting(
        parse_duration("120s"), "After how long without a byte a connection is closed.", at_least=0.1, at_most=7 * DAY
    )
    max_inflight: int = setting(
        10_000,
        "Requests of one connection that may be worked on at a time; more are refused.",
        at_least=1,
        at_most=10**6,
    )
    write_buffer: Size = setting(
        Size(4 * MIB), "Unsent answers to one slow peer before it is read no further.", at_least=KIB, at_most=GIB
    )


@attrs.frozen
class TlsSettings:
    """TLS, on the same ports as plain frames."""

    mode: Literal["disabled", "permissive", "enforcing"] = setting(
        "disabled", '"permissive" serves TLS and plain frames, "enforcing" TLS alone, "disabled" plain frames alone.'
    )
    certificate: str = setting("", "The server's certificate, and those between it and its authority, as a PEM file.")
    key: str = setting("", "The certificate's private key, as a PEM file without a password.")
    client_ca: str = setting("", 'Whose certificates clients must show: authorities in a PEM file; "" asks for none.')
    handshake_timeout: Duration = setting(
        parse_duration("10s"), "How long a handshake may take.", at_least=0.1, at_most=600
    )
    outgoing: bool = setting(False, "Whether this broker speaks TLS to name servers outside and to other brokers.")
    server_ca: str = setting(
        "", 'Whose certificates they must show: authorities in a PEM file; "" for those that the system trusts.'
    )


@attrs.frozen
class ClientSettings:
    """The clients that are connected."""

    expiry: Duration = setting(
        parse_duration("120s"),
        "After how long without a heartbeat a client counts as gone.",
        at_least=1,
        at_most=7 * DAY,
    )
    max_groups_per_client: int = setting(
        2_000, "How many producer and consumer groups one client may be in.", at_least=1, at_most=10**7
    )
    max_members: int = setting(
        200_000,
        "How many members all groups may have together; a client counts once in each.",
        at_least=1,
        at_most=10**8,
    )
    max_subscriptions_per_group: int = setting(
        5_000, "How many topics one consumer group may subscribe to.", at_least=1, at_most=10**7
    )
    max_subscriptions: int = setting(
        200_000, "How many subscriptions all consumer groups may have together.", at_least=1, at_most=10**8
    )


@attrs.frozen
class OffsetSettings:
    """How far the consumer groups are."""

    persist_interval: Duration = setting(
        parse_duration("5s"), "How often the groups' offsets are written to disk.", at_least=0.01, at_most=3600
    )
    max_offsets: int = setting(
        1_000_000, "How many offsets are kept, one for each group and queue.", at_least=1, at_most=10**8
    )


@attrs.frozen
class LogSettings:
    """What the broker says about itself."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "The least important lines that are shown.")
    format: Literal["text", "json"] = setting("text", "Lines for people, or a JSON object per line for a collector.")


@attrs.frozen
class PluginSettings:
    """Which plugins run; each has its own settings in ``[plugins.<name>]``."""

    enable: tuple[str, ...] = setting(
        ("default",),
        'The plugins to run: names, module:attribute or file paths; "default" is all built-in ones, [] is none.',
    )
    disable: tuple[str, ...] = setting((), "Plugins to leave out although enable has them.")


@attrs.frozen
class PluginPlace:
    """What ``[plugins.<name>]`` says to the plugin host; the other keys are the plugin's own."""

    before: tuple[str, ...] = setting((), "Plugins whose hooks are called after this one's.")
    after: tuple[str, ...] = setting((), "Plugins whose hooks are called before this one's.")
    from_: str = setting("", 'Where it is loaded from: module:attribute or a file path; "" finds it by name.')


SECTIONS: Mapping[str, type] = MappingProxyType(
    {
        "broker": BrokerSettings,
        "store": StoreSettings,
        "topics": TopicSettings,
        "groups": GroupSettings,
        "pull": PullSettings,
        "remoting": RemotingSettings,
        "tls": TlsSettings,
        "clients": ClientSettings,
        "offsets": OffsetSettings,
        "log": LogSettings,
        "plugins": PluginSettings,
    }
)
"""The sections in the order in which ``broker.toml`` has them."""
