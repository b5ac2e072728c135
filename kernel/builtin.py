"""The plugins that come with VernierMQ, by name: where each lives and what goes missing without it.

Only names here, no imports: a plugin's module is loaded when it is active and not before. ``requests`` and
``properties`` let the kernel answer "needs the plugin X" where a plugin that is not active would have acted.
"""

from __future__ import annotations

from typing import Final

import attrs

from verniermq.kernel.codes import RequestCode as R
from verniermq.kernel.message import Property


@attrs.frozen
class Builtin:
    name: str
    target: str
    """``module:attribute``"""
    requests: tuple[R, ...] = ()
    """Served by this plugin alone."""
    properties: tuple[str, ...] = ()
    """A message that carries one of them needs this plugin."""


BUILTIN: Final[dict[str, Builtin]] = {
    builtin.name: builtin
    for builtin in (
        Builtin("namesrv", "verniermq.plugins.namesrv:Plugin"),
        Builtin("filter", "verniermq.plugins.filter.tag:Plugin"),
        Builtin("sql", "verniermq.plugins.filter.sql:Plugin"),
        Builtin(
            "txn",
            "verniermq.plugins.txn:Plugin",
            requests=(R.END_TRANSACTION, R.RESUME_CHECK_HALF_MESSAGE),
            properties=(Property.TRANSACTION_PREPARED,),
        ),
        Builtin(
            "schedule",
            "verniermq.plugins.schedule:Plugin",
            requests=(R.GET_ALL_DELAY_OFFSET,),
            properties=(Property.DELAY,),
        ),
        Builtin("retry", "verniermq.plugins.retry:Plugin", requests=(R.CONSUMER_SEND_MSG_BACK,)),
        Builtin("order", "verniermq.plugins.order:Plugin", requests=(R.LOCK_BATCH_MQ, R.UNLOCK_BATCH_MQ)),
    )
}

DEFAULT_BROKER_PLUGINS: Final = tuple(BUILTIN)
