"""What a client raises on purpose; each says what to do, and ``retriable`` whether another try can help.

All are :class:`~verniermq.kernel.errors.VernierMQError`. What the kernel already names (``BadName``,
``PeerUnreachable``, ``UnexpectedAnswer``) is raised as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from shlex import quote

from verniermq.kernel import VernierMQError


class ClientError(VernierMQError):
    """The root of what the client itself has to say."""

    retriable = False


class NameServerUnreachable(ClientError):
    """No name server answered, so nobody can say where a topic lives."""

    retriable = True

    def __init__(self, reasons: Sequence[tuple[str, str]]) -> None:
        tried = "; ".join(f"{address}: {why}" for address, why in reasons)
        super().__init__(
            f"no name server answered ({tried}); start one with: verniermq broker, or give its address: namesrv=… in a "
            "program, --namesrv in a command"
        )
        self.addresses = [address for address, _ in reasons]


class BrokerUnreachable(ClientError):
    """The name server knows brokers, and none of them can be reached."""

    retriable = True

    def __init__(self, reasons: Sequence[tuple[str, str]], name_servers: str) -> None:
        tried = "; ".join(f"{address}: {why}" for address, why in reasons)
        super().__init__(
            f"no broker that {name_servers} knows can be reached ({tried}); check that it runs, and that the "
            "address it advertises can be reached from here ([broker] advertise)"
        )
        self.addresses = [address for address, _ in reasons]


class NoBroker(ClientError):
    """The name server is there, but no broker has registered with it."""

    retriable = True

    def __init__(self, name_servers: str) -> None:
        super().__init__(
            f"no broker has registered with the name server {name_servers}; "
            f"start one with: verniermq broker --set broker.namesrv={quote(name_servers.replace(';', ','))}"
        )


class NoSuchBroker(ClientError):
    """A broker that the name server does not know, or not its master."""

    def __init__(self, name: str, known: Sequence[str], name_servers: str) -> None:
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(f"no broker {name!r} with a master at {name_servers}; there are: {listed}")
        self.name = name


class NoRoute(ClientError):
    """A topic that the name server does not know."""

    retriable = True

    def __init__(self, topic: str, name_servers: str, why: str = "") -> None:
        super().__init__(
            f"topic {topic!r} not found at {name_servers}{f' ({why})' if why else ''}; "
            f"create it with: verniermq topic create {quote(topic)} --namesrv {quote(name_servers)}"
        )
        self.topic = topic


class NotWritable(ClientError):
    """A topic that exists, with no queue that takes messages; ``without_master`` names brokers that would."""

    def __init__(self, topic: str, name_servers: str, without_master: Sequence[str] = ()) -> None:
        if without_master:
            why = f"{', '.join(without_master)} has no master now, only slaves; start it, or wait for a new one"
        else:
            why = f"give it write permission with: verniermq topic create {quote(topic)} --perm 6 --namesrv " + quote(
                name_servers
            )
        super().__init__(f"topic {topic!r} has no queue at {name_servers} that may be written to; {why}")
        self.topic = topic
        self.without_master = tuple(without_master)
        self.retriable = bool(without_master)


class MessageTooLarge(ClientError):
    """One message that no broker would take; ``index`` is its place in the list that was sent."""

    def __init__(self, size: int, limit: int, index: int | None = None) -> None:
        which = "message" if index is None else f"message {index} of the list"
        super().__init__(
            f"{which} has {size} bytes and max_message_size is {limit}; send less, or raise max_message_size here "
            "and in [store] of the broker"
        )
        self.size = size
        self.limit = limit
        self.index = index


class BadBatch(ClientError):
    """Messages that may not travel together."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"message {index} of the batch {why}; send it alone")
        self.index = index


class BadMessage(ClientError):
    """A message that cannot be sent as it is."""


class BadSelector(ClientError):
    """A selector that did not choose a queue; the message was not sent."""

    def __init__(self, name: str, what: str, queues: int) -> None:
        super().__init__(
            f"selector {name!r} {what}, so the message was not sent; it takes (queues, message) and returns one of the "
            f"{queues} queues that it is given"
        )


def _without_repeats(tries: Sequence[str]) -> Iterator[str]:
    """``1. …``, ``2. …``; what was the same several times running is said once, ``1.-3. …``."""
    number = 1
    for what, same in groupby(tries):
        last = number + len(list(same)) - 1
        yield f"{number}. {what}" if last == number else f"{number}.-{last}. {what}"
        number = last + 1


class SendFailed(ClientError):
    """No try to send was answered well. The message may or may not be stored; ``tries`` tells of each try."""

    retriable = True

    def __init__(self, topic: str, tries: Sequence[str], seconds: float) -> None:
        told = "; ".join(_without_repeats(tries)) or "no time was left to try"
        count = "1 try" if len(tries) == 1 else f"{len(tries)} tries"
        super().__init__(f"message to {topic!r} was not acknowledged after {count} in {seconds:.1f} s: {told}")
        self.topic = topic
        self.tries = list(tries)


class BadOutcome(ClientError):
    """A local transaction, or a checker, that returned something else than a state."""


class BadAnswer(ClientError):
    """A broker says that it has a message, and not where."""

    def __init__(self, address: str, request: str, why: str) -> None:
        super().__init__(f"{address} answered {request} with success, but its answer cannot be read: {why}")
        self.address = address


class TooManyInFlight(ClientError):
    """The bound on unanswered sends was full for the whole timeout."""

    retriable = True

    def __init__(self, limit: int, seconds: float) -> None:
        super().__init__(
            f"{limit} sends were waiting for their answers for {seconds:g} s; send more slowly, or raise max_in_flight"
        )
        self.limit = limit


class NoReply(ClientError):
    """A request that no consumer replied to in time."""

    retriable = True

    def __init__(self, topic: str, seconds: float) -> None:
        super().__init__(
            f"no reply to the request sent to {topic!r} within {seconds:g} s; "
            "check that a consumer of the topic replies, or give it more time"
        )
        self.topic = topic


class NotRunning(ClientError):
    """A client that was not started, or is closed already."""

    def __init__(self, what: str, state: str, block: str = "async with") -> None:
        super().__init__(f"this {what} {state}; use it inside {block!r}, or between start() and close()")
        self.what = what
        self.state = state


class OtherProcess(ClientError):
    """A client of the parent process, used in a child; its connections belong to the parent."""

    def __init__(self, what: str, pid: int) -> None:
        super().__init__(
            f"this {what} was started in process {pid}; make a new one after fork, or use verniermq.client.sync, "
            "whose producers start again by themselves"
        )


class GroupConflict(ClientError):
    """Other members of the consumer group do something else than this one wants to."""

    def __init__(self, group: str, why: str) -> None:
        super().__init__(
            f"consumer group {group!r}: {why}; members of one group must subscribe alike, "
            "since the last heartbeat wins. Use another group, or stop the others"
        )
        self.group = group


class ReceiptExpired(ClientError):
    """A popped message whose invisible time is over, or that was acknowledged already."""

    def __init__(self, receipt: str, why: str) -> None:
        super().__init__(
            f"the message with receipt {receipt!r} is not this consumer's any more ({why}); it comes again unless it "
            "was acknowledged. Ask for more time earlier, or receive with a longer invisible="
        )
        self.receipt = receipt


class MessageNotFound(ClientError):
    """No broker has this message, or not any more."""

    def __init__(self, message_id: str, topic: str | None, why: str) -> None:
        hint = "" if topic else "; for the message_id that a producer made, give the topic too: message(id, topic)"
        super().__init__(f"message {message_id!r} was not found ({why}){hint}")
        self.message_id = message_id


class BodyNotReadable(ClientError):
    """A compressed body that cannot be made plain; a consumer puts such a message to the dead letters."""

    def __init__(self, which: str, why: str) -> None:
        super().__init__(f"the body of {which} is marked as compressed and cannot be read: {why}")


class BodyTooLarge(BodyNotReadable):
    """A compressed body that is larger than this client takes."""

    def __init__(self, which: str, stored: int, limit: int) -> None:
        super().__init__(
            which,
            f"its {stored} bytes inflate to more than max_body_size of {limit} bytes; raise max_body_size of this "
            "client if you trust who sent it",
        )
        self.limit = limit


class MissingLibrary(ClientError):
    def __init__(self, feature: str, package: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}; install it with: pip install 'verniermq[compression]'"
        )
        self.package = package
