"""Which copy consumers read from (RocketMQ: ``suggestWhichBrokerId`` of a pull's answer).

A consumer that is so far behind that the master would have to read its messages from the disk is sent to a slave, by
the group's ``whichBrokerWhenConsumeSlowly``; when it has caught up, it is sent back (``brokerId``).

::

    pull                        a master                     a slave that follows         a slave without a master
    found, far behind           found, read on at the slave  found, read on here          found, read on here
    found                       found                        found, read on at the master found, read on at the master
    at the end                  held                         20: go to the master         held
    outside of what is here     moved                        20: go to the master         20, after a pause

20 (``PULL_RETRY_IMMEDIATELY``) leaves the consumer where it is: a slave that lacks something must not move it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from verniermq.kernel import Answer, Command, Connection, Context, Handler, RequestRefused, ResponseCode, Work
from verniermq.kernel.requests import PullMessage
from verniermq.plugins.ha.settings import Config

IN_MEMORY: Final = 0.4
"""The part of the machine's memory that RocketMQ takes the newest part of the log to be in."""
PAUSE_SECONDS: Final = 1.0


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Reads:
    """``follows`` says of a slave whether it has a master now."""

    def __init__(self, broker: Context, config: Config, follows: Callable[[], bool]) -> None:
        self._broker = broker
        self._serves = config.slave_reads
        self._far = config.slow_after or int(_memory() * IN_MEMORY)
        self._follows = follows

    def pull(self, handler: Handler, request: Command, connection: Connection) -> Answer | Work:
        """Stands before the handler of pulls.

        Raises:
            RequestRefused: this broker is a slave and serves no consumers.
        """
        if not self._broker.role.is_master:
            return self._pull_from_slave(handler, request, connection)
        answer = handler(request, connection)
        store = self._broker.store
        if not self._serves or store.end - store.start <= self._far:
            return answer  # nobody can be that far behind
        if answer is None or isinstance(answer, Command):
            return self._advised(request, answer)
        return self._later(request, answer)

    def _pull_from_slave(self, handler: Handler, request: Command, connection: Connection) -> Answer | Work:
        if not self._serves:
            raise RequestRefused(
                f"this broker is a slave of {self._broker.name!r} and serves no consumers; set slave_reads = true in "
                "[plugins.ha]",
                ResponseCode.SYSTEM_BUSY,
            )
        if self._follows():
            PullMessage.of(request).sys_flag &= ~PullMessage.SUSPEND  # whoever waits, waits at the master
        answer = handler(request, connection)
        if answer is None:
            return None
        return self._slave_later(request, answer)

    async def _later(self, request: Command, answer: Any) -> Answer:
        return self._advised(request, await answer)

    async def _slave_later(self, request: Command, answer: Any) -> Answer:
        found = self._advised(request, answer if isinstance(answer, Command) else await answer)
        if found is None or found.code == ResponseCode.SUCCESS:
            return found
        is_moved = found.code == ResponseCode.PULL_OFFSET_MOVED
        if is_moved and not self._follows():
            await self._broker.clock.sleep(PAUSE_SECONDS)  # there is nowhere else to go: it comes again at once
        if is_moved or (found.code == ResponseCode.PULL_NOT_FOUND and self._follows()):
            found.code, found.frame = ResponseCode.PULL_RETRY_IMMEDIATELY, b""
            found.ext["nextBeginOffset"] = str(PullMessage.of(request).offset)
        return found

    def _advised(self, request: Command, answer: Answer) -> Answer:
        """The answer, with the broker to read on from."""
        if not isinstance(answer, Command) or answer.code != ResponseCode.SUCCESS:
            return answer
        asked = PullMessage.of(request)
        group = self._broker.groups.find(asked.group)
        queue = self._broker.store.queue(asked.topic, asked.queue_id)
        last = next(iter(queue.entries(answer.integer("nextBeginOffset") - 1, 1)), None) if queue is not None else None
        if group is None or last is None:
            return answer
        is_far = self._broker.store.end - last[0] > self._far
        broker_id = group.slow_broker_id if is_far else group.broker_id
        if broker_id:
            answer.ext["suggestWhichBrokerId"] = str(broker_id)
            answer.frame = b""
        return answer
