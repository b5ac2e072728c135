"""The requests about the replicas of a broker."""

from __future__ import annotations

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import Request, integer, request


@request
class SwitchMaster(Request):
    """Make another replica the master, as an administrator wishes."""

    code = RequestCode.SWITCH_MASTER
    replica: int = integer("replica", default=0)


@request
class NotifyRoleChanged(Request):
    """A controller has chosen a master."""

    code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    term: int = integer("masterEpoch", default=0)
