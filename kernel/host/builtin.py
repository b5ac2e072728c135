"""The plugins that come with VernierMQ: names, and where each one is. What a plugin serves it declares itself.

Only names here, no imports: a plugin's module is loaded when it is active and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Catalogue(NamedTuple):
    """Where the plugins of a broker, or of a client, come from."""

    builtin: Mapping[str, str]
    """Name → ``module:attribute``."""
    defaults: tuple[str, ...] = ()
    """What ``"default"`` in ``[plugins] enable`` stands for."""
    group: str = "verniermq"
    """The entry points of installed ones."""
    attribute: str = "Plugin"
    """The class in a file that ``enable`` names."""


_DEFAULTS: Final = {
    "namesrv": "verniermq.plugins.namesrv:Plugin",
    "topics": "verniermq.plugins.topics:Plugin",
    "filter": "verniermq.plugins.filter.tag:Plugin",
    "sql": "verniermq.plugins.filter.sql:Plugin",
    "txn": "verniermq.plugins.txn:Plugin",
    "reply": "verniermq.plugins.reply:Plugin",
    "allocate": "verniermq.plugins.allocate:Plugin",
    "pop": "verniermq.plugins.pop:Plugin",
    "priority": "verniermq.plugins.priority:Plugin",
    "schedule": "verniermq.plugins.schedule:Plugin",
    "retry": "verniermq.plugins.retry:Plugin",
    "admin": "verniermq.plugins.admin:Plugin",
    "retention": "verniermq.plugins.retention:Plugin",
    "query": "verniermq.plugins.query:Plugin",
    "order": "verniermq.plugins.order:Plugin",
    "flow": "verniermq.plugins.flow:Plugin",
    "statictopic": "verniermq.plugins.statictopic:Plugin",
}

_ON_REQUEST: Final = {
    "acl": "verniermq.plugins.acl:Plugin",
    "enrich": "verniermq.plugins.sendhooks.enrich:Plugin",
    "audit": "verniermq.plugins.sendhooks.audit:Plugin",
    "trace": "verniermq.plugins.sendhooks.trace:Plugin",
    "ha": "verniermq.plugins.ha:Plugin",
    "zookeeper": "verniermq.contrib.zookeeper:Plugin",
    "http": "verniermq.plugins.http:Plugin",
    "metrics": "verniermq.contrib.metrics:Plugin",
    "console": "verniermq.contrib.console.plugin:Plugin",
    "spark": "verniermq.contrib.spark.plugin:Plugin",
    "grpc": "verniermq.contrib.grpc.plugin:Plugin",
}

BROKER_PLUGINS: Final = Catalogue({**_DEFAULTS, **_ON_REQUEST}, tuple(_DEFAULTS))
