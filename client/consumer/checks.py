"""Asked before a consumer starts, so that a mistake is an error there and not a silence later."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from verniermq.client.api import BrokerApi
from verniermq.client.consumer.subscription import TopicSubscription
from verniermq.client.errors import ClientError, GroupConflict
from verniermq.client.routes import Routes
from verniermq.kernel import RETRY_PREFIX, RemotingError, UnexpectedAnswer
from verniermq.kernel.requests import CheckClientConfig
from verniermq.protocol.figures import GetConsumerConnections

logger = logging.getLogger(__name__)


async def check_sql(
    api: BrokerApi, routes: Routes, client_id: str, group: str, subscription: TopicSubscription
) -> None:
    """
    Raises:
        UnexpectedAnswer: a broker of the topic does not understand the expression, or has SQL filters switched off.
    """
    route = await routes.get(subscription.topic)
    check = CheckClientConfig(client_id=client_id, group=group, subscription=subscription.as_json())
    for name in route.brokers:
        address = route.address(name)
        if address is not None:
            await api.ask(address, check)


async def check_group(
    api: BrokerApi, routes: Routes, group: str, broadcasting: bool, wanted: Mapping[str, TopicSubscription]
) -> None:
    """Compare with what the members that are there already do; before this one has said that it is there too.

    Raises:
        GroupConflict: they do something else.
    """
    for topic in wanted:
        if topic.startswith(RETRY_PREFIX):
            continue
        try:
            address = next(a for name in (await routes.get(topic)).brokers if (a := routes.broker_address(name)))
            info = await api.json(address, GetConsumerConnections(group=group))
        except UnexpectedAnswer as error:
            logger.debug("nobody to compare with group=%s reason=%s", group, error)
            return
        except (ClientError, RemotingError, StopIteration) as error:
            logger.debug("group not compared group=%s reason=%s", group, error)
            continue
        _compare(group, broadcasting, wanted, info)
        return


def _compare(group: str, broadcasting: bool, wanted: Mapping[str, TopicSubscription], info: Mapping[str, Any]) -> None:
    model = "BROADCASTING" if broadcasting else "CLUSTERING"
    if info.get("messageModel", model) != model:
        raise GroupConflict(group, f"its other members are {info['messageModel']} and this one is {model}")
    table = info.get("subscriptionTable") or {}
    theirs = _texts({topic: data.get("subString", "*") for topic, data in table.items()})
    ours = _texts({topic: data.subscription.expression for topic, data in wanted.items()})
    if theirs != ours:
        raise GroupConflict(group, f"its other members subscribe to {_listed(theirs)}, this one to {_listed(ours)}")


def _texts(expressions: Mapping[str, str]) -> dict[str, str]:
    """Comparable: tags in any order and spacing are the same subscription."""
    return {
        topic: " || ".join(sorted(part.strip() for part in (text or "*").split("||")))
        for topic, text in expressions.items()
        if not topic.startswith(RETRY_PREFIX)
    }


def _listed(expressions: Mapping[str, str]) -> str:
    return ", ".join(f"{topic} ({text})" for topic, text in sorted(expressions.items())) or "nothing"
