"""A plugin for a broker that forgets: it answers each send and stores nothing, so that only the client is measured."""

from __future__ import annotations

from typing import ClassVar

import attrs

from verniermq.kernel import Command, Connection, Context, Declaration, NoConfig, Registry, RequestCode


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, summary="Answers sends and forgets the messages.", requests=(RequestCode.SEND_MESSAGE_V2,)
    )
    config: NoConfig
    broker: Context

    def setup(self, registry: Registry) -> None:
        registry.handler(RequestCode.SEND_MESSAGE_V2, self._answer)

    def _answer(self, request: Command, connection: Connection) -> Command:
        place = {"msgId": "7F00000100002A9F0000000000000000", "queueId": request.ext["e"], "queueOffset": "0"}
        return request.reply(0, place)
