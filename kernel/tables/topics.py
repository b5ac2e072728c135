"""The topics of a broker (RocketMQ: ``TopicConfigManager``): what exists, and how one comes to exist.

Kept in ``config/topics.json`` in RocketMQ's form, so that an Apache broker can go on with it. It says too which topics
were deleted while the log has messages of them: after a crash the log is read again, and they must not come back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import orjson

from verniermq.kernel.codes import Perm
from verniermq.kernel.config import TopicSettings
from verniermq.kernel.errors import BadName, InvalidParameter, LimitReached, NoPermission, TopicNotFound
from verniermq.kernel.message import MAX_TOPIC_LENGTH
from verniermq.kernel.names import (
    AUTO_CREATE_TOPIC,
    BROKERS_OWN_TOPICS,
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    is_system_topic,
)
from verniermq.kernel.tables.jsonfile import encoded
from verniermq.kernel.tables.version import DataVersion

logger = logging.getLogger(__name__)

_LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+\Z")

MAX_RETRY_TOPIC_LENGTH: Final = 255
MAX_GROUP_LENGTH: Final = 120
MAX_QUEUES: Final = 65536
"""As many queues a topic may have."""
MOST_ATTRIBUTE_BYTES: Final = 65536
"""What one topic's attributes may take: the table is kept in memory, and written as a whole."""
CLUSTER_TOPIC_QUEUES: Final = 16
"""As at Apache, of the topic that has the cluster's name."""
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
"""What an Apache broker can read back from the file."""

DELETED: Final = "verniermqDeletedTopics"
"""The member of topics.json with what was deleted while the log still has messages of it."""


def check_topic_name(name: str) -> None:
    """Refuse a name that no topic may have.

    Raises:
        BadName: the name is empty, too long, or has a character that RocketMQ's clients refuse.
    """
    derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    _check_name("topic", name, MAX_RETRY_TOPIC_LENGTH if derived else MAX_TOPIC_LENGTH)


def check_group_name(name: str) -> None:
    """Refuse a name that no group may have.

    Raises:
        BadName: as for a topic, with at most 120 characters.
    """
    _check_name("group", name, MAX_GROUP_LENGTH)


def _check_name(kind: str, name: str, limit: int) -> None:
    if not name:
        raise BadName(kind, name, "is empty")
    if len(name) > limit:
        raise BadName(kind, name, f"has {len(name)} characters; at most {limit} are allowed")
    if not _LEGAL_NAME.match(name):
        raise BadName(kind, name, "has a character that is not allowed; use letters, digits, '_', '-', '%' and '|'")


@attrs.frozen
class TopicConfig:
    """One topic: how many queues, who may read and write."""

    name: str
    read_queues: int = 4
    write_queues: int = 4
    perm: int = Perm.READ_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @property
    def queues(self) -> int:
        """Queues that exist at all; while a topic shrinks, one of the two counts is the larger."""
        return max(self.read_queues, self.write_queues)

    def check(self) -> None:
        """
        Raises:
            BadName, InvalidParameter: the name, a queue count, the permission or another member is not allowed.
        """
        check_topic_name(self.name)
        self.check_numbers()
        if self.filter_type not in FILTER_TYPES:
            expected = " or ".join(FILTER_TYPES)
            raise InvalidParameter(f"topic {self.name!r}: filter type {self.filter_type!r:.80}; expected {expected}")
        size = sum(len(text.encode()) for attribute in self.attributes.items() for text in attribute)
        if size > MOST_ATTRIBUTE_BYTES:
            raise InvalidParameter(
                f"topic {self.name!r}: attributes of {size} bytes; at most {MOST_ATTRIBUTE_BYTES} are kept"
            )

    def check_numbers(self) -> None:
        """
        Raises:
            InvalidParameter: a queue count, the permission or the flag is out of range.
        """
        for what, count in (("read", self.read_queues), ("write", self.write_queues)):
            if not 0 <= count <= MAX_QUEUES:
                raise InvalidParameter(f"topic {self.name!r}: {count} {what} queues; expected 0 to {MAX_QUEUES}")
        if not 0 <= self.perm <= 7:
            raise InvalidParameter(f"topic {self.name!r}: perm {self.perm}; expected 2 (write), 4 (read) or 6 (both)")
        if not -(2**31) <= self.sys_flag < 2**31:
            raise InvalidParameter(f"topic {self.name!r}: topicSysFlag {self.sys_flag}; expected 32 bits")

    def as_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TopicConfig:
        """
        Raises:
            InvalidParameter: a member is missing or of the wrong type.
        """
        try:
            name = data["topicName"]
            if not isinstance(name, str):
                raise TypeError(f"topicName is {name!r:.80}")
            return cls(
                name=name,
                read_queues=int(data.get("readQueueNums", 16)),
                write_queues=int(data.get("writeQueueNums", 16)),
                perm=int(data.get("perm", Perm.READ_WRITE)),
                filter_type=str(data.get("topicFilterType", "SINGLE_TAG")),
                sys_flag=int(data.get("topicSysFlag", 0)),
                order=bool(data.get("order", False)),
                attributes={str(key): str(value) for key, value in dict(data.get("attributes") or {}).items()},
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidParameter(f"a topic configuration is malformed: {error!r:.200}") from error


class TopicTable:
    """All topics of one broker. ``on_change`` hears of every change, with what changed and what was deleted."""

    def __init__(
        self,
        settings: TopicSettings,
        *,
        on_change: Callable[[Sequence[TopicConfig], Sequence[str]], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._topics: dict[str, TopicConfig] = {}
        self._encoded: dict[str, orjson.Fragment] = {}
        """The topics as they go into the file and over the wire: they are asked for far more often than changed."""
        self._system: set[str] = set()
        self._closed: set[str] = set(BROKERS_OWN_TOPICS)
        self._queues = 0
        """Of all topics together."""
        self._created_by: dict[str, int] = {}
        """Client address → how many topics its sends created."""
        self._settings = settings
        self._on_change = on_change
        self._deleted: dict[str, int] = {}
        """Topics that are gone → where the log ended then: messages before it went with them."""
        self.version = DataVersion(now_ms)

    def add_system_topics(
        self, topics: Iterable[TopicConfig], closed: Iterable[str] = (), *, cluster: str = "", broker: str = ""
    ) -> None:
        """Create what the broker and its plugins need for themselves; what is there already is left alone.

        Tools find a cluster or a broker by a topic of its name, and measure with messages to it. A name that no topic
        may have, such as one with a dot, has none.

        Args:
            closed: names that no producer may send to
        """
        self._closed.update(closed)
        if self._settings.auto_create:
            topics = [self._template(), *topics]
        named = [
            TopicConfig(cluster, CLUSTER_TOPIC_QUEUES, CLUSTER_TOPIC_QUEUES, Perm.READ_WRITE | Perm.INHERIT),
            TopicConfig(broker, 1, 1, Perm.READ_WRITE | Perm.INHERIT),
        ]
        for topic in [*topics, *(topic for topic in named if _LEGAL_NAME.match(topic.name))]:
            self._system.add(topic.name)
            if topic.name not in self._topics:
                self._keep(topic)

    @property
    def auto_create(self) -> bool:
        """Whether sends create topics; may change at any time."""
        return self._settings.auto_create

    @auto_create.setter
    def auto_create(self, allowed: bool) -> None:
        self._settings = attrs.evolve(self._settings, auto_create=allowed)
        if allowed:
            self._system.add(AUTO_CREATE_TOPIC)
            self.ensure(self._template())

    def _template(self) -> TopicConfig:
        queues = self._settings.default_queues
        return TopicConfig(AUTO_CREATE_TOPIC, queues, queues, Perm.READ_WRITE | Perm.INHERIT)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def get(self, name: str) -> TopicConfig:
        """
        Raises:
            TopicNotFound: there is no such topic.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def is_closed(self, name: str) -> bool:
        """Whether a topic is for the broker's own messages, and no client's business."""
        return name in self._closed

    def is_system(self, name: str) -> bool:
        return name in self._system or is_system_topic(name)

    def for_send(self, name: str, template: str, queues_wanted: int, peer: str = "") -> TopicConfig:
        """The topic that a producer sends to, created from the template topic if it has to be.

        ``peer`` is the address of the client that it is created for; ``""``: the broker needs it itself.

        Raises:
            TopicNotFound: it does not exist and may not be created.
            BadName, NoPermission: a producer may not send to a topic of this name.
            LimitReached: there are as many topics as sends may create.
        """
        topic = self._topics.get(name)
        if topic is not None:
            if name in self._closed:
                raise NoPermission(f"topic {name!r} is the broker's own; producers may not send to it")
            return topic
        check_topic_name(name)
        if name in self._closed:
            raise NoPermission(f"topic {name!r} is the broker's own; producers may not send to it")
        model = self._topics.get(template)
        if self._settings.auto_create and model is not None and model.perm & Perm.INHERIT:
            queues = max(1, min(queues_wanted, model.write_queues))
            created = TopicConfig(name, queues, queues, model.perm & ~Perm.INHERIT, model.filter_type)
        elif name.startswith(RETRY_PREFIX):
            created = TopicConfig(name, 1, 1)
        else:
            raise TopicNotFound(name)
        if peer:
            self._check_auto_create(peer)
            self.put(created)
            self._created_by[peer] = self._created_by.get(peer, 0) + 1
        else:
            self.ensure(created)
        return created

    def for_delivery(self, name: str, queue_id: int) -> int:
        """The queue for a message that waited elsewhere and was meant for this one: the same, if there is one still.

        An Apache broker would put it into a queue that nobody can read. A topic that is not there is made again.
        """
        topic = self._topics.get(name) or self.restore(name, queue_id + 1)
        if queue_id < topic.queues:
            return queue_id
        return queue_id % (topic.read_queues or topic.write_queues or 1)

    def restore(self, name: str, queues: int) -> TopicConfig:
        """Make a topic again of which messages are all that is left: no smaller than any producer knows it.

        One that was created by a send has at most as many queues as the template. Only retry topics and dead letters
        are made otherwise, and what an administrator makes is on the disk before anybody can use it.
        """
        if self._settings.auto_create and not name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            model = self._topics.get(AUTO_CREATE_TOPIC)
            queues = max(queues, self._settings.default_queues if model is None else model.write_queues)
        queues = min(queues, MAX_QUEUES)
        return self.ensure(TopicConfig(name, queues, queues))

    def show_queue(self, name: str, queue_id: int) -> bool:
        """Let a queue be read that a topic lacks; whether it was so. Producers learn of no more queues than before."""
        topic = self._topics.get(name)
        if topic is None or queue_id < topic.queues or queue_id >= MAX_QUEUES:
            return False
        self._change(attrs.evolve(topic, read_queues=queue_id + 1))
        return True

    def _check_auto_create(self, peer: str) -> None:
        settings = self._settings
        if len(self._topics) >= settings.auto_create_limit:
            what = "sends create no more topics, this broker has"
            raise LimitReached(what, settings.auto_create_limit, "auto_create_limit", "topics")
        if self._created_by.get(peer, 0) >= settings.auto_create_per_peer:
            what = f"sends from {peer} created topics:"
            raise LimitReached(what, settings.auto_create_per_peer, "auto_create_per_peer", "topics")

    def put(self, topic: TopicConfig) -> None:
        """Create or change a topic.

        Raises:
            BadName, InvalidParameter: the name, a queue count or the permission is not allowed.
            LimitReached: there are as many topics or queues as there may be.
        """
        topic.check()
        if self._topics.get(topic.name) == topic:
            return
        self._check_room(topic)
        self._change(topic)

    def _check_room(self, topic: TopicConfig) -> None:
        settings, known = self._settings, self._topics.get(topic.name)
        if known is None and len(self._topics) >= settings.max_topics:
            raise LimitReached("this broker has topics:", settings.max_topics, "max_topics", "topics")
        more = topic.queues - (known.queues if known is not None else 0)
        if more > 0 and topic.queues > settings.max_queues_per_topic:
            raise InvalidParameter(
                f"topic {topic.name!r}: {topic.queues} queues, the limit is {settings.max_queues_per_topic}; "
                "raise max_queues_per_topic in [topics] to allow more"
            )
        if more > 0 and self._queues + more > settings.max_queues:
            what = f"topic {topic.name!r} would have {topic.queues} queues, and all topics together more than"
            raise LimitReached(what, settings.max_queues, "max_queues", "topics")

    def _change(self, topic: TopicConfig) -> None:
        self._keep(topic)
        self._deleted.pop(topic.name, None)
        self.version.next()
        self._on_change([topic], [])

    def _keep(self, topic: TopicConfig) -> None:
        known = self._topics.get(topic.name)
        self._queues += topic.queues - (known.queues if known is not None else 0)
        self._topics[topic.name] = topic
        self._encoded[topic.name] = encoded(topic.as_json())

    def ensure(self, topic: TopicConfig) -> TopicConfig:
        """The topic of this name, created like this if there is none.

        For what the broker itself needs, often for messages that it has accepted already: no limit applies.

        Raises:
            BadName, InvalidParameter: as :meth:`put`.
        """
        existing = self._topics.get(topic.name)
        if existing is not None:
            return existing
        topic.check()
        self._change(topic)
        return topic

    def delete(self, name: str, log_end: int) -> bool:
        """Forget a topic and all its messages before ``log_end``; says whether it was there."""
        topic = self._topics.pop(name, None)
        if topic is None:
            return False
        self._queues -= topic.queues
        del self._encoded[name]
        self._deleted[name] = log_end
        self.version.next()
        self._on_change([], [name])
        return True

    def was_deleted_after(self, name: str, commit_log_offset: int) -> bool:
        """Whether a topic was deleted, and not made again, after a message of it was stored there."""
        return commit_log_offset < self._deleted.get(name, 0)

    def forget_deletions(self, log_start: int) -> None:
        """The log has nothing any more of topics that were deleted when it ended here or earlier."""
        self._deleted = {name: offset for name, offset in self._deleted.items() if offset > log_start}

    # --- config/topics.json ----------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """What goes into the file; each topic is encoded already."""
        return {"dataVersion": self.version.as_json(), "topicConfigTable": self._encoded.copy()}

    def as_document(self) -> dict[str, Any]:
        """The file's content: the table, and what an Apache broker passes over."""
        return {**self.as_json(), DELETED: dict(self._deleted)} if self._deleted else self.as_json()

    def load_json(self, data: Mapping[str, Any]) -> None:
        self.version.load(data.get("dataVersion"))
        self._deleted = {name: int(offset) for name, offset in data.get(DELETED, {}).items()}
        for name, config in data.get("topicConfigTable", {}).items():
            try:
                self._keep(TopicConfig.from_json({"topicName": name, **config}))
            except (InvalidParameter, TypeError) as error:
                logger.error("a topic of the table is left out: %s; create it again topic=%r", error, name)
