"""Every error that VernierMQ raises on purpose, under one root.

The class says what a caller can do about it, the attributes carry the values, and the message is made
here, so that it is worded once. An error that may reach a peer carries the response code to answer with;
:mod:`verniermq.kernel.remoting.server` is the one place that turns errors into answers.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from verniermq.kernel.codes import ResponseCode

LONGEST_SLIP: Final = 200
"""Characters of a name that is compared with those that are known: a peer may send a name of megabytes."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, for the end of an error message."""
    names = sorted(known)
    close = close_match(name, names, 0.6)
    if close is not None:
        return f"did you mean {close!r}?"
    return f"it knows {', '.join(names)}" if names else "it knows none"


def close_match(name: str, known: Iterable[str], cutoff: float) -> str | None:
    """The known name that is most like another one, if any is like it at all."""
    if len(name) > LONGEST_SLIP:
        return None
    from difflib import get_close_matches  # here: a start without a mistake does without it

    return next(iter(get_close_matches(name, known, n=1, cutoff=cutoff)), None)


class VernierMQError(Exception):
    """The root: whatever VernierMQ raises on purpose is one of these."""


# --- what is answered to a peer ------------------------------------------------------------


class RequestRefused(VernierMQError):
    """A request cannot be served; ``code`` and the text are what the peer gets to see."""

    code: ResponseCode = ResponseCode.SYSTEM_ERROR

    def __init__(self, message: str, code: ResponseCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InvalidParameter(RequestRefused):
    """A field of the request is missing, malformed or out of range."""

    code = ResponseCode.INVALID_PARAMETER


class MissingField(InvalidParameter):
    """A request lacks a field that it needs."""

    def __init__(self, field: str, request: str) -> None:
        super().__init__(f"request {request} lacks the field {field!r}")
        self.field = field


class BadField(InvalidParameter):
    """A field of a request has a value that cannot be used."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"field {field!r} is {value!r}, expected {expected}")
        self.field = field
        self.value = value


class TopicNotFound(RequestRefused):
    """There is no such topic."""

    code = ResponseCode.TOPIC_NOT_EXIST

    def __init__(self, topic: str, why: str = "create it first, or set auto_create = true in [topics]") -> None:
        super().__init__(f"topic {topic!r} does not exist; {why}")
        self.topic = topic


class GroupNotFound(RequestRefused):
    """There is no such consumer group."""

    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    def __init__(self, group: str) -> None:
        super().__init__(f"consumer group {group!r} does not exist; create it, or set auto_create = true in [groups]")
        self.group = group


class BadName(InvalidParameter):
    """A name of a topic or group that is not allowed."""

    def __init__(self, kind: str, name: str, why: str) -> None:
        super().__init__(f"{kind} name {name!r} {why}")
        self.name = name


class QueueOutOfRange(InvalidParameter):
    def __init__(self, topic: str, queue_id: int, queues: int) -> None:
        super().__init__(f"topic {topic!r} has no queue {queue_id}; it has {queues} queues, 0 to {queues - 1}")
        self.topic = topic
        self.queue_id = queue_id


class NoPermission(RequestRefused):
    """The peer, or the topic, does not allow it."""

    code = ResponseCode.NO_PERMISSION


class LimitReached(NoPermission):
    """There are as many of something as there may be, so that one peer cannot take the memory of all the others."""

    def __init__(self, what: str, limit: int, setting: str, section: str) -> None:
        super().__init__(f"{what} {limit}, as many as there may be; raise {setting} in [{section}] to allow more")
        self.limit = limit
        self.setting = setting


class MessageIllegal(RequestRefused):
    """The message itself may not be stored: too large, or a combination that RocketMQ forbids."""

    code = ResponseCode.MESSAGE_ILLEGAL


class MessageSizeExceeded(MessageIllegal):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"message of {size} bytes exceeds max_message_size of {limit} bytes; "
            "compress the body or raise max_message_size in [store]"
        )
        self.size = size
        self.limit = limit


class PropertiesTooLarge(MessageIllegal):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"properties of {size} bytes exceed the {limit} bytes that a record can hold; shorten them")
        self.size = size
        self.limit = limit


class StoreNotWritable(RequestRefused):
    """The store takes no writes now: the disk is full, the broker is a slave, or it is stopping."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


class TableNotSaved(RequestRefused):
    """A table was changed as asked for, but the disk does not take it: a restart would forget the change."""

    def __init__(self, path: Path, cause: Exception) -> None:
        why = (isinstance(cause, OSError) and cause.strerror) or cause
        super().__init__(
            f"the change is in effect, but not on the disk: {path} cannot be written: {why}; "
            "the broker keeps trying: free some disk space, or the change is lost when it stops"
        )
        self.path = path


class Busy(RequestRefused):
    """Too much is waiting already; the peer should back off and try again."""

    code = ResponseCode.SYSTEM_BUSY


class SubscriptionParseFailed(RequestRefused):
    """An expression of a subscription that cannot be read."""

    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class PluginMissing(RequestRefused):
    """A feature was asked for whose plugin is not active."""

    def __init__(self, plugin: str, feature: str, code: ResponseCode = ResponseCode.SYSTEM_ERROR) -> None:
        super().__init__(
            f"{feature} needs the plugin {plugin!r}, which is not active; "
            f"take it out of disable, or add it to enable, in [plugins] of broker.toml",
            code,
        )
        self.plugin = plugin


class PluginFailed(RequestRefused):
    """A plugin that fails closed raised while it was asked; the request is refused rather than let through."""

    def __init__(self, plugin: str, hook: str, cause: BaseException) -> None:
        super().__init__(f"plugin {plugin!r} failed in {hook}: {type(cause).__name__}: {cause}")
        self.plugin = plugin
        self.hook = hook


class FrameTooLarge(RequestRefused):
    """What should be sent does not fit into one frame; the peer would close the connection over it."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"frame of {size} bytes exceeds max_frame_size of {limit} bytes; ask for less at a time")
        self.size = size
        self.limit = limit


# --- bytes that are not what they should be ------------------------------------------------


class ProtocolError(VernierMQError):
    """Bytes from a peer that are no frame; the connection is closed, since its rest cannot be trusted."""


class CorruptRecord(VernierMQError):
    """Bytes in the commit log that are no whole record."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"no whole record at commit-log offset {offset}: {why}")
        self.offset = offset
        self.why = why


class StoreError(VernierMQError):
    """The files on disk cannot be used as they are."""


class StoreLocked(StoreError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"a broker uses the store {path}; stop it first, or choose another store")
        self.path = path


class NotACopy(StoreError):
    """A master's bytes do not continue this log."""


class CannotOpenStore(StoreError):
    """The disk refused something that a start needs."""

    def __init__(self, path: Path, cause: OSError) -> None:
        self.path = path
        if isinstance(cause, FileExistsError | NotADirectoryError):
            wanted = Path(cause.filename or path)
            found = next((place for place in (wanted, *wanted.parents) if place.exists()), wanted)
            if not found.is_dir():
                super().__init__(
                    f"the store {path} cannot be opened: {found} is not a folder; move it away, or set [store] path"
                )
                return
        where = "" if cause.filename in (None, str(path)) else f" ({cause.filename})"
        no_room = cause.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "; free some disk space, and start again: nothing is lost" if no_room else ""
        super().__init__(f"the store {path} cannot be opened: {cause.strerror or cause}{where}{advice}")


class SegmentSizeMismatch(StoreError):
    def __init__(self, path: Path, size: int, expected: int) -> None:
        super().__init__(
            f"segment {path} is {size} bytes, expected {expected}; set [store] segment_size to the size the store "
            "was written with, or, if the file was cut, move it away and restart to recover up to it"
        )
        self.path = path
        self.size = size
        self.expected = expected


# --- configuration and plugins -------------------------------------------------------------


class ConfigError(VernierMQError):
    """``broker.toml``, an environment variable or a flag says something that cannot be used."""

    plugin: str | None = None
    """Whose table it was, if it was a plugin's."""


class UnknownSetting(ConfigError):
    """A key or a section that there is not.

    Attributes:
        name: The key.
        advice: What was probably meant.
    """

    def __init__(self, what: str, name: str, advice: str) -> None:
        super().__init__(what)
        self.name = name
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.args[0]}; {self.advice}"


class PluginError(VernierMQError):
    """A plugin cannot be loaded or does not fit."""

    def __init__(self, message: str, plugin: str | None = None) -> None:
        super().__init__(message)
        self.plugin = plugin


# --- talking to somebody else --------------------------------------------------------------


class RemotingError(VernierMQError):
    """A request to a peer got no usable answer. ``retriable`` says whether another try can help."""

    retriable = True


class ListenFailed(VernierMQError):
    """The broker cannot listen where it was told to."""

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {why}")
        self.host = host
        self.port = port


class PeerUnreachable(RemotingError):
    """No connection to an address could be made."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"cannot reach {address}: {why}")
        self.address = address


class ConnectionLost(RemotingError):
    """The peer went away before it answered."""

    def __init__(self, address: str) -> None:
        super().__init__(f"the connection to {address} was lost before an answer came")
        self.address = address


class RequestTimeout(RemotingError):
    """The peer did not answer in time."""

    def __init__(self, address: str, request: str, seconds: float) -> None:
        super().__init__(f"{address} did not answer {request} within {seconds:g} s")
        self.address = address


class MalformedAnswer(RemotingError):
    """The peer answered with a body that is not what it should be."""

    retriable = False

    def __init__(self, address: str, request: str, why: str) -> None:
        super().__init__(f"{address} answered {request} with a body that cannot be read: {why}")
        self.address = address


class UnexpectedAnswer(RemotingError):
    """The peer answered with a code that means the request failed."""

    retriable = False

    def __init__(self, address: str, request: str, code: int, remark: str) -> None:
        name = ResponseCode(code).name if code in ResponseCode._value2member_map_ else "unknown code"
        super().__init__(f"{address} answered {request} with {name} ({code}): {remark or 'no remark'}")
        self.address = address
        self.code = code
        self.remark = remark
