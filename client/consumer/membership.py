"""Being a member of a consumer group: what brokers hear of it, and how it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verniermq.client.api import BrokerApi
from verniermq.client.connection import ConnectionPool
from verniermq.client.consumer.start import StartFrom, wire_name
from verniermq.client.consumer.subscription import TopicSubscription
from verniermq.kernel import RemotingError


def heartbeat_data(
    group: str, wanted: Mapping[str, TopicSubscription], start: StartFrom, *, is_asked: bool, broadcasting: bool = False
) -> dict[str, Any]:
    """A member, as its heartbeats describe it (RocketMQ: ``ConsumerData``). ``is_asked`` tells poll from push."""
    return {
        "consumerDataSet": [
            {
                "consumeFromWhere": wire_name(start),
                "consumeType": "CONSUME_ACTIVELY" if is_asked else "CONSUME_PASSIVELY",
                "groupName": group,
                "messageModel": "BROADCASTING" if broadcasting else "CLUSTERING",
                "subscriptionDataSet": [subscription.as_json() for subscription in wanted.values()],
                "unitMode": False,
            }
        ]
    }


async def leave(
    pool: ConnectionPool, api: BrokerApi, name_servers: tuple[str, ...], client_id: str, group: str
) -> None:
    """Tell every broker that this member goes, so that the others take its queues at once."""
    for address in set(pool.connected()) - set(name_servers):
        try:
            await api.unregister(address, client_id, consumer_group=group)
        except RemotingError:
            pass  # closing the connection tells the broker the same
