"""The topics of a broker (RocketMQ: ``TopicConfigManager``): what exists, and how one comes to exist.

Kept in ``config/topics.json`` in RocketMQ's form, so that an Apache broker can go on with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from verniermq.kernel.codes import Perm
from verniermq.kernel.errors import BadName, InvalidParameter, NoPermission, TopicNotFound
from verniermq.kernel.message import AUTO_CREATE_TOPIC, DEAD_LETTER_PREFIX, MAX_TOPIC_LENGTH, RETRY_PREFIX
from verniermq.kernel.versions import DataVersion

_LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+\Z")

MAX_RETRY_TOPIC_LENGTH: Final = 255
MAX_GROUP_LENGTH: Final = 120
MAX_QUEUES: Final = 65536
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
"""What an Apache broker can read back from the file."""

SYSTEM_PREFIX: Final = "rmq_sys_"

CLOSED_TOPICS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""Topics that only the broker itself may write to."""

SYSTEM_TOPICS: Final = CLOSED_TOPICS | {AUTO_CREATE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}


def check_topic_name(name: str) -> None:
    """
    Raises:
        BadName: the name is empty, too long, or has a character that RocketMQ's clients refuse.
    """
    derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    _check_name("topic", name, MAX_RETRY_TOPIC_LENGTH if derived else MAX_TOPIC_LENGTH)


def check_group_name(name: str) -> None:
    """
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
            raise InvalidParameter(f"topic {self.name!r}: filter type {self.filter_type!r}; expected {expected}")

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
                raise TypeError(f"topicName is {name!r}")
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
            raise InvalidParameter(f"a topic configuration is malformed: {error!r}") from error


class TopicTable:
    """All topics of one broker. ``on_change`` hears of every change, with what changed and what was deleted."""

    def __init__(
        self,
        *,
        auto_create: bool,
        default_queues: int,
        on_change: Callable[[Sequence[TopicConfig], Sequence[str]], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._topics: dict[str, TopicConfig] = {}
        self._system: set[str] = set()
        self._auto_create = auto_create
        self._default_queues = default_queues
        self._on_change = on_change
        self.version = DataVersion(now_ms)

    def add_system_topics(self, topics: Iterable[TopicConfig]) -> None:
        """Create what the broker and its plugins need for themselves; what is there already is left alone."""
        if self._auto_create:
            template = TopicConfig(
                AUTO_CREATE_TOPIC, self._default_queues, self._default_queues, Perm.READ_WRITE | Perm.INHERIT
            )
            topics = [template, *topics]
        for topic in topics:
            self._system.add(topic.name)
            self._topics.setdefault(topic.name, topic)

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

    def is_system(self, name: str) -> bool:
        return name in self._system or name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)

    def for_send(self, name: str, template: str, queues_wanted: int) -> TopicConfig:
        """The topic that a producer sends to, created from the template topic if it has to be.

        Raises:
            TopicNotFound: it does not exist and may not be created.
            BadName, NoPermission: a producer may not send to a topic of this name.
        """
        topic = self._topics.get(name)
        if topic is not None:
            if name in CLOSED_TOPICS:
                raise NoPermission(f"topic {name!r} is the broker's own; producers may not send to it")
            return topic
        check_topic_name(name)
        if name in CLOSED_TOPICS:
            raise NoPermission(f"topic {name!r} is the broker's own; producers may not send to it")
        model = self._topics.get(template)
        if model is not None and model.perm & Perm.INHERIT:
            queues = max(1, min(queues_wanted, model.write_queues))
            created = TopicConfig(name, queues, queues, model.perm & ~Perm.INHERIT, model.filter_type)
        elif name.startswith(RETRY_PREFIX):
            created = TopicConfig(name, 1, 1)
        else:
            raise TopicNotFound(name)
        self.put(created)
        return created

    def put(self, topic: TopicConfig) -> None:
        """Create or change a topic.

        Raises:
            BadName, InvalidParameter: the name, a queue count or the permission is not allowed.
        """
        topic.check()
        if self._topics.get(topic.name) == topic:
            return
        self._topics[topic.name] = topic
        self.version.next()
        self._on_change([topic], [])

    def ensure(self, topic: TopicConfig) -> TopicConfig:
        """The topic of this name, created like this if there is none."""
        existing = self._topics.get(topic.name)
        if existing is not None:
            return existing
        self.put(topic)
        return topic

    def delete(self, name: str) -> bool:
        """Forget a topic; says whether it was there."""
        if self._topics.pop(name, None) is None:
            return False
        self.version.next()
        self._on_change([], [name])
        return True

    # --- config/topics.json ----------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.as_json(),
            "topicConfigTable": {topic.name: topic.as_json() for topic in self._topics.values()},
        }

    def load_json(self, data: Mapping[str, Any]) -> None:
        self.version.load(data.get("dataVersion"))
        for name, config in data.get("topicConfigTable", {}).items():
            self._topics[name] = TopicConfig.from_json({"topicName": name, **config})
