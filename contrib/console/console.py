"""The parts of one console, put together."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from verniermq.client.credentials import Credentials
from verniermq.contrib.console.audit import AuditTrail
from verniermq.contrib.console.history import RateHistory
from verniermq.contrib.console.inquiry import AskedCluster, BrokerPlace, Inquiry
from verniermq.contrib.console.session import Sessions
from verniermq.contrib.console.settings import Config
from verniermq.protocol.peers import Peers


@attrs.define(eq=False)
class Console:
    """What pages are made of.

    Args:
        peers: the name servers and brokers to ask
        own: the broker that the console is a plugin of
    """

    config: Config
    peers: Peers
    own: Callable[[], BrokerPlace | None] = lambda: None
    cluster: AskedCluster = attrs.field(init=False)
    sessions: Sessions = attrs.field(factory=Sessions, init=False)
    history: RateHistory = attrs.field(factory=RateHistory, init=False)
    audit: AuditTrail = attrs.field(factory=AuditTrail, init=False)
    credentials: Credentials | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.cluster = AskedCluster(self.peers, self.own)
        key = self.config.access_key
        self.credentials = Credentials(key, self.config.secret_key) if key else None

    @property
    def has_accounts(self) -> bool:
        return self.config.authentication == "accounts"

    def inquiry(self, cookie: str = "") -> Inquiry:
        """Questions on behalf of the account whose session it is, or of the console's own."""
        account = self.sessions.account(cookie) if self.has_accounts else None
        return self.cluster.inquiry(account or self.credentials)
