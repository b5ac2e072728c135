"""The contract of every fault strategy: run it on your own.

``check_fault_strategy(make)`` plays a producer with three brokers against fresh strategies and asserts what
a producer relies on. ``make(clock_ms)`` makes a strategy that reads the time from the given function.
"""

from __future__ import annotations

from collections.abc import Callable

from verniermq.kernel.message import MessageQueue
from verniermq.kernel.traffic import FaultStrategy


def check_fault_strategy(make: Callable[[Callable[[], float]], FaultStrategy], *, remembers: bool = True) -> None:
    """Assert that a producer can always send, spreads its sends, and keeps away from what just failed.

    The answer is always one of the queues offered. While all is well every queue gets its turn, each as
    often as another within one. A retry goes to another broker if a healthy one is left. A topic on a
    single broker is sent to whatever happened, and so is one whose brokers all failed. If it ``remembers``,
    the next sends keep away from a broker that failed, and an hour later it is used again.
    """
    now_ms = 1_000_000.0

    def clock() -> float:
        return now_ms

    brokers = ("broker-a", "broker-b", "broker-c")
    queues = [MessageQueue("orders", broker, number) for broker in brokers for number in range(4)]

    strategy = make(clock)
    chosen = [strategy.choose(queues, None) for _ in range(10 * len(queues))]
    assert set(chosen) <= set(queues), "a queue was chosen that was not offered"
    counts = [chosen.count(queue) for queue in queues]
    assert max(counts) - min(counts) <= 1, f"healthy queues are not used alike: {counts}"

    for broker in brokers:
        for _ in range(30):
            retried = strategy.choose(queues, broker)
            assert retried in queues, "a queue was chosen that was not offered"
            assert retried.broker_name != broker, f"a retry went back to {broker}"

    single = [queue for queue in queues if queue.broker_name == "broker-a"]
    strategy.record("broker-a", 3000, failed=True, reachable=False)
    assert strategy.choose(single, None) in single, "the only broker of a topic must be used even if it failed"
    assert strategy.choose(single, "broker-a") in single, "a retry must use the only broker there is"

    strategy = make(clock)
    for broker in brokers:
        strategy.record(broker, 3000, failed=True, reachable=False)
    assert strategy.choose(queues, None) in queues, "when all brokers failed, one must be tried all the same"

    if not remembers:
        return
    strategy = make(clock)
    strategy.record("broker-b", 3000, failed=True, reachable=True)
    after_failure = {strategy.choose(queues, None).broker_name for _ in range(60)}
    assert after_failure == {"broker-a", "broker-c"}, f"after broker-b failed, sends went to {sorted(after_failure)}"

    now_ms += 3_600_000
    later = {strategy.choose(queues, None).broker_name for _ in range(60)}
    assert later == set(brokers), f"an hour later only {sorted(later)} were used"
