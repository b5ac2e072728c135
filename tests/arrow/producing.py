"""A producer that waits for every answer, for tests that are not async."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from verniermq.contrib.arrow.wire import Wire
from verniermq.kernel import RequestCode, ResponseCode, format_properties


class Producing:
    def __init__(self, address: str) -> None:
        self.wire = Wire(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.wire.close()

    def create(self, topic: str, queues: int = 2) -> None:
        fields = {
            "topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6",
            "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        answer = self.wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == ResponseCode.SUCCESS, answer

    def send(
        self, topic: str, body: bytes, queue: int = 0, times: int = 0, sys_flag: int = 0, **properties: str
    ) -> None:
        fields = {
            "a": "producers", "b": topic, "c": "TBW102", "d": "2", "e": str(queue), "f": str(sys_flag),
            "g": str(int(time.time() * 1000)), "h": "0", "i": format_properties(properties), "j": str(times),
        }  # fmt: skip
        answer = self.wire.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer

    def send_many(self, topic: str, count: int, queues: int = 2, size: int = 0, **properties: str) -> list[bytes]:
        """Numbered messages, to the queues in turn; their bodies."""
        self.create(topic, queues)
        bodies = [b"%s %d" % (topic.encode(), number) + bytes(size) for number in range(count)]
        for number, body in enumerate(bodies):
            self.send(topic, body, number % queues, KEYS=f"key-{number}", **properties)
        return bodies
