"""One producer for the process, and messages that wait for the commit of what they tell of."""

from __future__ import annotations

import threading
from typing import Any

from django.conf import settings
from django.db import transaction

from verniermq.client.sync import Message, Producer

_lock = threading.Lock()
_producer: Producer | None = None


def client_options() -> dict[str, Any]:
    """``VERNIERMQ`` of the settings, without what is no option of every client."""
    return {name: value for name, value in getattr(settings, "VERNIERMQ", {}).items() if name != "group"}


def get_producer() -> Producer:
    """The producer of this process, started with the first use; a forked child has its own."""
    global _producer
    with _lock:
        if _producer is None:
            group = getattr(settings, "VERNIERMQ", {}).get("group", "django")
            _producer = Producer(group, **client_options()).start()
        return _producer


def send_on_commit(message: Message, *, using: str | None = None, robust: bool = False) -> None:
    """Send a message when the transaction that is open now is committed; at once if there is none.

    A transaction that is rolled back sends nothing. A process that dies between its commit and the send sends nothing
    either: what must not be missed wants a row in the same transaction that says what is still to be sent.

    Args:
        using: the database, if it is not the default one
        robust: log an error of the send instead of raising it after the commit
    """
    transaction.on_commit(lambda: get_producer().send(message) and None, using=using, robust=robust)
