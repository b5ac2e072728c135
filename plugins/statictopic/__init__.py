"""Static topics: a topic's logical queues stay the same while they move between brokers (RocketMQ: ``StaticTopic``).

::

    UPDATE_AND_CREATE_STATIC_TOPIC ──> __init__.py     keeps the mapping that an administrator made
    SEND_MESSAGE, PULL_MESSAGE, … ───> translation.py  logical queue and offset into physical ones
                                       peers.py        … on another broker, if they lie there
                                       mapping.py      which is which
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import attrs

from verniermq.kernel import (
    FROM_PEER,
    Command,
    Connection,
    Context,
    Declaration,
    Document,
    InvalidParameter,
    NoConfig,
    Registry,
    RequestCode,
    TopicConfig,
    hookimpl,
    hookspecs,
    parse_fastjson,
)
from verniermq.kernel.requests import Request, boolean, in_body, integer, request, text

if TYPE_CHECKING:  # imported with the first static topic: most brokers have none
    from verniermq.plugins.statictopic.mapping import TopicMapping
    from verniermq.plugins.statictopic.translation import Translator


@request
class UpdateStaticTopic(Request):
    """An administrator's."""

    code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
    topic: str = text("topic")
    read_queues: int = integer("readQueueNums")
    write_queues: int = integer("writeQueueNums")
    perm: int = integer("perm")
    filter_type: str = text("topicFilterType", default="SINGLE_TAG")
    sys_flag: int = integer("topicSysFlag", default=0)
    force: bool = boolean("force", default=False)
    mapping: bytes = in_body(default=b"")
    """As JSON."""

    def take_body(self, body: bytes) -> None:
        self.mapping = body

    def body(self) -> bytes:
        return self.mapping


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        summary="Static topics: logical queues that stay the same while they move between brokers.",
        requests=(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,),
        on_failure="closed",
    )
    config: NoConfig
    broker: Context
    _mappings: dict[str, TopicMapping] = attrs.field(factory=dict, init=False)
    _document: Document = attrs.field(init=False)
    _translator: Translator | None = attrs.field(default=None, init=False)
    _release: Callable[[], None] | None = attrs.field(default=None, init=False)
    """Takes the translation off the path of requests; ``None`` while it is not there."""
    _changing: anyio.Lock = attrs.field(factory=anyio.Lock, init=False)

    def setup(self, registry: Registry) -> None:
        registry.handler(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, self.update, UpdateStaticTopic)
        self._document = registry.table("topicQueueMapping", load=self._load, save=self._save)

    def _load(self, data: Mapping[str, Any]) -> None:
        for topic, mapping in (data.get("topicQueueMappingInfoMap") or {}).items():
            self._mappings[topic] = _read(mapping)

    def _save(self) -> Mapping[str, Any]:
        details = {topic: mapping.as_json() for topic, mapping in self._mappings.items()}
        return {"dataVersion": self.broker.topics.version.as_json(), "topicQueueMappingInfoMap": details}

    @hookimpl
    def store_opened(self) -> None:
        self._engage()

    @hookimpl
    async def broker_stopping(self) -> None:
        if self._translator is not None:
            self._translator.close()

    def _engage(self) -> None:
        """Requests are looked at only while there are static topics."""
        if self._mappings and self._release is None:
            if self._translator is None:
                from verniermq.plugins.statictopic.translation import Translator

                self._translator = Translator(self.broker, self._mappings)
            self._release = self.broker.intercept(self._translator.interceptors())
        elif not self._mappings and self._release is not None:
            self._release()
            self._release = None

    async def update(self, request: Command, connection: Connection) -> Command:
        """UPDATE_AND_CREATE_STATIC_TOPIC: the physical queues of this broker, and what they are parts of."""
        async with self._changing:
            return await self._update(request)

    async def _update(self, request: Command) -> Command:
        asked, topics = UpdateStaticTopic.of(request), self.broker.topics
        name = asked.topic
        topic = TopicConfig(name, asked.read_queues, asked.write_queues, asked.perm, asked.filter_type, asked.sys_flag)
        topic.check()
        if topics.is_system(name):
            raise InvalidParameter(f"topic {name!r} is the broker's own; it cannot be changed")
        known = topics.find(name)
        if known is not None:
            if name not in self._mappings:
                raise InvalidParameter(
                    f"topic {name!r} exists and is no static topic; choose another name, or delete it"
                )
            topic = attrs.evolve(topic, attributes=known.attributes)
        mapping = self._mapping(asked, topic)
        if known is not None:
            mapping = mapping.after(self._mappings[name], force=asked.force)
        # The mapping first: one without its topic, as a crash may leave it, is replaced when it is sent again; a topic
        # without its mapping would be one that is not static.
        self._mappings[name] = mapping
        self._engage()
        self._document.touch()
        await self._document.saved()
        topics.put(topic)
        topics.version.next()  # or name servers would take the registration for one that they know
        await self.broker.topics_saved()
        self.broker.hooks.announce(hookspecs.topics_changed, [topic], [])
        return request.reply()

    def _mapping(self, asked: UpdateStaticTopic, topic: TopicConfig) -> TopicMapping:
        try:
            data = parse_fastjson(asked.mapping, FROM_PEER)
        except ValueError as error:
            raise InvalidParameter(f"the queue mapping is no JSON that can be used: {error}") from error
        mapping = _read(data)
        if (mapping.topic, mapping.broker) != (topic.name, self.broker.name):
            raise InvalidParameter(
                f"the queue mapping is of topic {mapping.topic!r:.140} on broker {mapping.broker!r:.140}; "
                f"expected {topic.name!r} on {self.broker.name!r}"
            )
        own = [queue for chain in mapping.chains.values() for queue in chain if queue.broker == self.broker.name]
        if any(queue.queue_id >= topic.queues for queue in own):
            raise InvalidParameter(f"topic {topic.name!r}: a logical queue lies in none of its {topic.queues} queues")
        return mapping

    @hookimpl
    def topics_changed(self, changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
        gone = [name for name in deleted if self._mappings.pop(name, None) is not None]
        if gone:
            self._document.touch()
            self._engage()

    @hookimpl(optionalhook=True)
    def queue_mappings(self) -> Mapping[str, Mapping[str, Any]] | None:
        return {topic: mapping.as_route() for topic, mapping in self._mappings.items()} or None


def _read(data: Any) -> TopicMapping:
    from verniermq.plugins.statictopic.mapping import TopicMapping

    return TopicMapping.from_json(data)
