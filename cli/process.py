"""The process of a broker: what it says of itself, and what it asks of the system."""

from __future__ import annotations

import ctypes
import gc
import linecache
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from verniermq.kernel.broker import Broker
from verniermq.kernel.remoting.descriptors import descriptor_limit

logger = logging.getLogger(__name__)


def collect_garbage_rarely() -> None:
    """Set apart what lives as long as the broker, and look for cycles among the rest less often than Python would.

    A message makes a dozen objects and no cycle; by default the collector would run at every fiftieth message, and
    would walk through all that the imports made every now and then. What only the start needed goes back to the system,
    among it the texts of the methods that attrs wrote, which are kept for debuggers, and the lists of the folders that
    imports looked into: a megabyte.
    """
    linecache.clearcache()
    sys.path_importer_cache.clear()
    re.purge()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other systems have none
    if trim is not None:
        trim(0)
    gc.freeze()
    gc.set_threshold(20_000, 1, 1_000)


def raise_descriptor_limit() -> None:
    """Have as many as the system allows, as a Java process has by itself; a shell gives fewer at first."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError) as error:
        logger.info("the limit of open files stays as it is limit=%d: %s", descriptor_limit(), error)


def description(broker: Broker) -> dict[str, Any]:
    """What whoever started a broker wants to know of it."""
    return {
        "broker": broker.address,
        "namesrv": broker.name_servers[0] if broker.name_servers else "",
        "pid": os.getpid(),
        "store": str(Path(broker.store.path).resolve()),
    }
