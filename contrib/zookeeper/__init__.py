"""ZooKeeper as what replicas choose their master through: ``pip install 'verniermq[zookeeper]'``.

::

    [plugins]
    enable = ["default", "ha", "zookeeper"]

    [plugins.ha]
    mode = "failover"
    replica = 1

    [plugins.zookeeper]
    servers = ["10.0.0.1:2181", "10.0.0.2:2181", "10.0.0.3:2181"]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import attrs

from verniermq.kernel import Context, Declaration, PluginError, Registry, hookimpl, parse_address, setting

if TYPE_CHECKING:
    from verniermq.plugins.ha.coordinator import Coordinator


def _are_servers(texts: Iterable[str]) -> str | None:
    try:
        for text in texts:
            parse_address(text)
    except ValueError:
        return 'addresses such as "10.0.0.1:2181"'
    return None


@attrs.frozen
class Config:
    """``[plugins.zookeeper]``"""

    servers: tuple[str, ...] = setting(
        ("127.0.0.1:2181",), 'The servers of ZooKeeper, such as "10.0.0.1:2181".', check=_are_servers
    )
    user: str = setting("", "Who to be there (digest); what is stored is then this user's alone.")
    password: str = setting("", "The password of user.", secret=True)
    tls: bool = setting(False, "Whether to speak TLS to them.")
    ca: str = setting("", "A PEM file with who signs their certificates.")
    certificate: str = setting("", "A PEM file with the certificate and the key to show to them.")


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Lets replicas choose their master through ZooKeeper.",
        needs=("ha",),
        packages=("kazoo",),
        install="verniermq[zookeeper]",
    )
    config: Config
    broker: Context

    def __attrs_post_init__(self) -> None:
        if self.config.tls and not self.config.ca:
            raise PluginError("[plugins.zookeeper] tls = true needs to know whom to trust: set ca in it", "zookeeper")

    def setup(self, registry: Registry) -> None:
        """All is done when ``ha`` asks."""

    @hookimpl(optionalhook=True)
    def coordinator_for(self, cluster: str, broker: str, ttl: float) -> Coordinator:
        from verniermq.contrib.zookeeper.coordinator import ZooKeeper

        return ZooKeeper(self.config, cluster, broker, ttl=ttl)
