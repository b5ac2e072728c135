"""A broker: its parts put together, and what plugins see of them."""

from verniermq.kernel.broker.broker import Broker
from verniermq.kernel.broker.context import Context

__all__ = ["Broker", "Context"]
