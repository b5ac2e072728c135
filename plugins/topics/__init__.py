"""Topics and consumer groups by request: created, changed, looked at, deleted.

::

    UPDATE_AND_CREATE_TOPIC ──────────────> topics.py ──┬──> attributes.py    one without effect is refused
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP ──> groups.py ──┘

The tables are the kernel's, and so is the creation of a topic by its first message. Without this plugin, an operator
cannot name one.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from verniermq.kernel import Context, Declaration, NoConfig, Registry, RequestCode
from verniermq.plugins.topics.attributes import TOPIC_ATTRIBUTES
from verniermq.plugins.topics.groups import GroupHandlers
from verniermq.plugins.topics.topics import TopicHandlers, topics_told


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        summary="Topics and consumer groups: created, changed, shown and deleted on request.",
        requests=(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_TOPIC_CONFIG,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        ),
        topic_attributes=TOPIC_ATTRIBUTES,
        hookspecs=(topics_told,),
    )
    config: NoConfig
    broker: Context

    def setup(self, registry: Registry) -> None:
        TopicHandlers(self.broker).register(registry)
        GroupHandlers(self.broker).register(registry)
