"""Answers to appends, which wait until the disk and other brokers have the messages: those of a turn together.

::

    turn of the loop   append a b c          append d e
    asked about                   c                   e
    answered                              a b c              d e

The log becomes durable and is copied in its order, so what has the last message of a turn has all of them. One
question to plugins, one wait for the disk and one task serve a turn then, however many messages it brought. Its answers
have one status: after a time-out the first of them may be confirmed, but who is told of a time-out relies on nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, final

from verniermq.kernel import hookspecs
from verniermq.kernel.codes import ResponseCode
from verniermq.kernel.maybe import Withheld
from verniermq.kernel.names import Property
from verniermq.kernel.remoting import Command, Connection

if TYPE_CHECKING:
    from verniermq.kernel.host.brokerhost import BrokerHost
    from verniermq.kernel.store import Appended, Store

MOST_UNCONFIRMED: Final = 1024
"""Answers that wait for the disk or for other brokers before their peers do: all of them leave in the same turn."""

Outcome: TypeAlias = tuple[ResponseCode, str]
"""Whether something was confirmed, and a remark if not."""


@final
class Round:
    """The appends of one turn that are to be confirmed."""

    __slots__ = ("answers", "last", "task")

    task: asyncio.Task[Outcome]

    def __init__(self, last: Appended) -> None:
        self.last = last
        self.answers: list[tuple[Command, Withheld[Command]]] = []
        """With their requests."""


class Acknowledgements:
    """Says when what was appended to a store may be acknowledged."""

    def __init__(self, store: Store, host: BrokerHost) -> None:
        self._store = store
        self._host = host
        self._confirming = host.calls(hookspecs.confirm_append)
        self._gathering: Round | None = None
        """That of this turn, if there is one."""
        self.unconfirmed = 0
        """Answers that wait."""

    @property
    def wait(self) -> bool:
        """Whether there is anything to wait for."""
        return self._store.waits_for_disk or bool(self._confirming)

    def are_wanted(self, properties: Mapping[str, str]) -> bool:
        """Whether the answer to a send has to wait for the disk or for other brokers."""
        return self.wait and properties.get(Property.WAIT) != "false"

    def hold(self, request: Command, answer: Command, appended: Appended, connection: Connection) -> Withheld[Command]:
        """The answer to a send, when it may go out; with too many that wait, the peer waits as well."""
        gathering = self._round_of(appended)
        held = Withheld(answer, gathering.task)
        gathering.answers.append((request, held))
        self.unconfirmed += 1
        if self.unconfirmed > MOST_UNCONFIRMED:
            connection.serve_after(gathering.task)
        return held

    async def confirmed(self, appended: Appended) -> Outcome:
        """Wait until a message may be acknowledged, and say how."""
        return await asyncio.shield(self._round_of(appended).task) if self.wait else (ResponseCode.SUCCESS, "")

    def _round_of(self, appended: Appended) -> Round:
        gathering = self._gathering
        if gathering is None:
            gathering = self._gathering = Round(appended)
            gathering.task = asyncio.get_running_loop().create_task(self._finish(gathering))
            gathering.task.add_done_callback(_look_at)
        elif appended.commit_log_offset > gathering.last.commit_log_offset:
            gathering.last = appended
        return gathering

    async def _finish(self, gathered: Round) -> Outcome:
        """Runs in the turn after that of the appends: before anything could be cut off or have another master."""
        self._gathering = None
        answers = gathered.answers
        try:
            replicas = self._host.ask(hookspecs.confirm_append, gathered.last) if self._confirming else None
            code, remark = await self._confirm(gathered.last, replicas)
        except BaseException as error:
            for _, held in answers:
                held.end(None, error)
            raise
        finally:
            self.unconfirmed -= len(answers)
        for request, held in answers:
            answer = held.result
            held.end(answer if code == ResponseCode.SUCCESS else request.reply(code, answer.ext, remark=remark))
        return code, remark

    async def _confirm(self, last: Appended, replicas: Awaitable[ResponseCode] | None) -> Outcome:
        on_disk = await self._store.durable(last.end) if self._store.waits_for_disk else True
        if replicas is not None:
            code = await replicas
            if code is not None and code != ResponseCode.SUCCESS:
                return code, "stored, but not confirmed by the other brokers in time"
        if not on_disk:
            return ResponseCode.FLUSH_DISK_TIMEOUT, "stored, but the disk did not confirm it in time"
        return ResponseCode.SUCCESS, ""


def _look_at(task: asyncio.Task[Outcome]) -> None:
    """What went wrong is told with each answer; the loop need not complain that nobody awaited it."""
    if not task.cancelled():
        task.exception()
