"""A plugin for a broker that forgets: it answers each send and stores nothing, so that only the client is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from verniermq.kernel import Broker, Command, Connection, Declaration, Handler, NoConfig, RequestCode, hookimpl


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="Answers sends and forgets the messages.")
    config: NoConfig

    @hookimpl
    def request_handlers(self, broker: Broker) -> Mapping[int, Handler]:
        return {RequestCode.SEND_MESSAGE_V2: self._answer}

    def _answer(self, request: Command, connection: Connection) -> Command:
        place = {"msgId": "7F00000100002A9F0000000000000000", "queueId": request.ext["e"], "queueOffset": "0"}
        return request.reply(0, place)
