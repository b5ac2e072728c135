"""For tests of programs and of plugins: a broker, and the contracts of the plugin families.

::

    async with running_broker() as broker:
        ...                                   # broker.address, broker.name_servers[0]

    clock = ManualClock()
    async with running_broker(clock=clock) as broker:
        await clock.advance(3600)             # an hour of delays, retries and time-outs, at once

    with broker_process() as process:         # for clients in other languages
        ...                                   # process.broker, process.namesrv

    check_allocator(my_strategy)              # raises AssertionError with the case that does not fit

The ``check_*`` functions are contracts: whoever writes a plugin of a family runs its contract over it. No pytest in
here; :mod:`verniermq.testing.pytest_plugin` makes fixtures of it.
"""

from verniermq.testing.allocate import check_allocator
from verniermq.testing.broker import (
    SMALL,
    BrokerProcess,
    BrokerProcessFailed,
    broker_process,
    running_broker,
    small_configuration,
)
from verniermq.testing.clock import ManualClock
from verniermq.testing.fault import check_fault_strategy
from verniermq.testing.filter import check_filter
from verniermq.testing.flow import check_shaper
from verniermq.testing.sendhooks import check_send_hooks

__all__ = [
    "SMALL",
    "BrokerProcess",
    "BrokerProcessFailed",
    "ManualClock",
    "broker_process",
    "check_allocator",
    "check_fault_strategy",
    "check_filter",
    "check_send_hooks",
    "check_shaper",
    "running_broker",
    "small_configuration",
]
