"""What all codecs have in common."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Final, Generic, TypeVar

from verniermq.client import Later, Message, ReceivedMessage
from verniermq.kernel import VernierMQError

T = TypeVar("T")

CONTENT_TYPE: Final = "content-type"
"""The property that says how a body is written."""
DEAD: Final = -1


class BadBody(VernierMQError):
    """A body that is not what the codec's type says."""

    def __init__(self, message_id: str, wanted: object, why: str) -> None:
        super().__init__(f"the body of message {message_id} is no {wanted}: {why}")
        self.message_id = message_id


class Codec(ABC, Generic[T]):
    """Turns objects of one type into bodies and back."""

    content_type: ClassVar[str]

    def __init__(self, type: type[T]) -> None:
        self.type = type

    @abstractmethod
    def encode(self, value: T) -> bytes: ...

    @abstractmethod
    def decode_body(self, body: bytes) -> T:
        """
        Raises:
            ValueError: it is no such object.
        """

    def message(self, topic: str, value: T, **options: Any) -> Message:
        """A message with this object as its body; ``options`` are those of :class:`~verniermq.client.Message`."""
        properties = {**options.pop("properties", {}), CONTENT_TYPE: self.content_type}
        return Message(topic, self.encode(value), properties=properties, **options)

    def decode(self, message: ReceivedMessage) -> T:
        """The object that a message carries.

        Raises:
            BadBody: it carries something else.
        """
        try:
            return self.decode_body(message.body)
        except ValueError as error:
            raise BadBody(message.message_id, getattr(self.type, "__name__", self.type), str(error)) from error

    def handler(self, function: Callable[[T, ReceivedMessage], Any]) -> Callable[[ReceivedMessage], Any]:
        """A handler of messages from a function of objects. A decorator, under ``on_message``."""

        def refused(error: BadBody) -> Later:
            return Later(delay_level=DEAD, reason=str(error))

        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def handle(message: ReceivedMessage) -> Any:
                try:
                    value = self.decode(message)
                except BadBody as error:
                    return refused(error)
                return await function(value, message)

            return handle

        @wraps(function)
        def handle_in_thread(message: ReceivedMessage) -> Any:
            try:
                value = self.decode(message)
            except BadBody as error:
                return refused(error)
            return function(value, message)

        return handle_in_thread
