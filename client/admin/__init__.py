"""Looking after topics, groups, offsets and messages (RocketMQ: ``MQAdminExt``, ``mqadmin``)."""

from __future__ import annotations

from verniermq.client.admin.cluster import BrokerStatus, TopicQueue, TopicStatus
from verniermq.client.admin.definitions import DefinitionAdmin
from verniermq.client.admin.groups import QueueProgress
from verniermq.client.admin.messages import FOREVER, MessageAdmin
from verniermq.client.admin.progress import GroupProgress, QueueLag
from verniermq.client.admin.topics import TopicInfo

__all__ = [
    "FOREVER",
    "Admin",
    "BrokerStatus",
    "GroupProgress",
    "QueueLag",
    "QueueProgress",
    "TopicInfo",
    "TopicQueue",
    "TopicStatus",
]


class Admin(DefinitionAdmin, MessageAdmin):
    """Creates, changes, lists and deletes; looks at messages and at how far groups are.

    ::

        async with Admin() as admin:
            await admin.create_topic("orders", queues=8)
            print(await admin.lag("billing", "orders"))
    """
