"""What a command asks for, with names and types (RocketMQ: ``CommandCustomHeader``).

A class per kind of request, with a line per field of the header::

    @request
    class QueryConsumerOffset(Request):
        code = RequestCode.QUERY_CONSUMER_OFFSET
        group: str = text("consumerGroup")
        topic: str = text("topic")
        queue_id: int = integer("queueId")
        zero_if_none: bool = boolean("setZeroIfNotFound", default=True)

        def touches(self, finder: Finder) -> Iterator[Access]:
            yield topic_access(self.topic, SUB)
            yield group_access(self.group)

Who receives a command asks ``QueryConsumerOffset.of(command)``: it is decoded once, so that who checks it and who
serves it read the same. Who sends one writes ``QueryConsumerOffset(group=…, topic=…, queue_id=…).command()``. Both
forms of header carry the same fields, so neither has to know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Self, TypeVar, cast, dataclass_transform

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.errors import BadField
from verniermq.kernel.remoting.command import Command
from verniermq.kernel.requests.access import Access, Finder, cluster_access

_new = object.__new__
_REQUIRED: Final = object()


class Field:
    """One field of a header: its name here and on the wire, and how it is read and written."""

    __slots__ = ("default", "name", "read", "wire", "write")

    def __init__(
        self, wire: str, default: object, read: Callable[[Command, Field], object], write: Callable[[Any], str]
    ) -> None:
        self.name = ""
        self.wire = wire
        self.default = default
        self.read = read
        self.write = write


def text(wire: str, *, default: Any = _REQUIRED) -> Any:
    """A field that is a text. Without a default it has to be there."""
    if default is _REQUIRED:
        return Field(wire, default, lambda command, field: command.text(field.wire), str)
    return Field(wire, default, lambda command, field: command.text(field.wire, field.default), str)


def integer(wire: str, *, default: Any = _REQUIRED, at_least: int | None = None, at_most: int | None = None) -> Any:
    """A field that is a number of at most 64 bits; an empty text is the same as none."""

    def read(command: Command, field: Field) -> object:
        value = command.integer(wire) if default is _REQUIRED else command.integer(wire, default)
        if value is not None and (
            (at_least is not None and value < at_least) or (at_most is not None and value > at_most)
        ):
            raise BadField(wire, value, f"{at_least} or more" if at_most is None else f"{at_least} to {at_most}")
        return value

    return Field(wire, default, read, str)


def boolean(wire: str, *, default: Any = _REQUIRED) -> Any:
    """A field that is ``true`` or ``false``."""

    def read(command: Command, field: Field) -> object:
        return command.boolean(wire) if default is _REQUIRED else command.boolean(wire, default)

    return Field(wire, default, read, lambda value: "true" if value else "false")


def in_body(*, default: Any = _REQUIRED) -> Any:
    """Something that the body says: ``take_body`` sets it, ``body`` writes it."""
    return Field("", default, lambda command, field: None, str)


_Class = TypeVar("_Class", bound="type[Request]")


@dataclass_transform(kw_only_default=True, field_specifiers=(text, integer, boolean, in_body))
def request(cls: _Class) -> _Class:
    """Make a class of a request: its fields become slots, in the place of their descriptions."""
    fields = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
    for name, field in fields.items():
        field.name = name
    left_out = {*fields, "__dict__", "__weakref__"}
    members = {name: value for name, value in vars(cls).items() if name not in left_out}
    members["__slots__"] = tuple(fields)
    members["fields"] = (*cls.fields, *fields.values())
    return cast(_Class, type(cls.__name__, cls.__bases__, members))


class Request:
    """A request, decoded. Subclasses are marked with :func:`request`."""

    __slots__ = ()

    code: ClassVar[RequestCode]
    """The code that it is sent with."""
    fields: ClassVar[tuple[Field, ...]] = ()

    def __init__(self, **values: Any) -> None:
        for field in self.fields:
            value = values.pop(field.name, field.default)
            if value is _REQUIRED:
                raise TypeError(f"{type(self).__name__} lacks {field.name}")
            setattr(self, field.name, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}={getattr(self, field.name, '?')!r:.100}" for field in self.fields)
        return f"{type(self).__name__}({fields})"

    # --- from the wire ---------------------------------------------------------------------

    @classmethod
    def of(cls, command: Command) -> Self:
        """The request that a command carries: decoded when it is first asked for, the same one afterwards.

        Raises:
            MissingField, BadField, InvalidParameter: it cannot be decoded.
        """
        decoded = command.decoded
        if decoded.__class__ is cls:
            return decoded
        if decoded is not None and not isinstance(decoded, Undeclared):
            raise TypeError(f"{command!r} was decoded as {type(decoded).__name__}, and is asked for as {cls.__name__}")
        command.decoded = decoded = cls.decode(command)
        return decoded

    @classmethod
    def decode(cls, command: Command) -> Self:
        """Read the fields and the body; :meth:`of` does it once only.

        Raises:
            MissingField, BadField, InvalidParameter: it cannot be decoded.
        """
        decoded = _new(cls)
        for field in cls.fields:
            if field.wire:
                setattr(decoded, field.name, field.read(command, field))
        decoded.take_body(command.body)
        return decoded

    def take_body(self, body: bytes) -> None:
        """Read what the body says; most requests have none."""

    # --- onto the wire ---------------------------------------------------------------------

    def command(self, code: int | None = None, *, oneway: bool = False) -> Command:
        """The command to send; the connection gives it its opaque."""
        return Command.request(self.code if code is None else code, self.ext(), self.body(), oneway=oneway)

    def ext(self) -> dict[str, str]:
        """The fields of the header by their wire names; one that is ``None`` is left out."""
        ext = {}
        for field in self.fields:
            if field.wire and (value := getattr(self, field.name)) is not None:
                ext[field.wire] = field.write(value)
        return ext

    def body(self) -> bytes:
        return b""

    # --- what it is about ------------------------------------------------------------------

    def touches(self, finder: Finder) -> Iterable[Access]:
        """What it wants to do with which topics and groups. Without an answer of its own: an administrator's matter."""
        return (cluster_access(),)


@request
class Undeclared(Request):
    """A request without a class of its own: only its code is known, so it is for administrators."""
