"""What the documentation page says is so."""

from __future__ import annotations

from tests.kernel.enabling import client_context
from tests.plugins.allocate.picture import WHERE, picture
from tests.plugins.documented import example, settings
from verniermq.kernel import MessageQueue, NoConfig
from verniermq.kernel.config.structure import structure
from verniermq.plugins.allocate import Config, Plugin
from verniermq.testing import check_allocator


def test_the_picture_is_current() -> None:
    assert WHERE.read_text(encoding="utf-8") == picture()


def test_the_documented_settings_are_accepted() -> None:
    config = structure(Config, settings("allocate"), "plugins.allocate")

    plugin = Plugin(config, client_context())
    queues = [MessageQueue("orders", broker, number) for broker in ("hz-1", "sh-1") for number in range(2)]
    clients = ["10.1.0.1@5", "10.2.0.1@5"]
    assert plugin.allocate_queues("machine_room_nearby", clients[0], queues, clients) == queues[2:]
    assert plugin.allocate_queues("by_config", clients[0], queues, clients) == [MessageQueue("orders", "broker-a", 0)]


def test_the_documented_strategy_keeps_the_contract() -> None:
    names = example("allocate")

    check_allocator(names["rendezvous"], balanced=False)
    plugin = names["Plugin"](NoConfig(), client_context())
    queue = MessageQueue("orders", "broker-a", 0)
    assert plugin.allocate_queues("rendezvous", "a", [queue], ["a"]) == [queue]
    assert plugin.allocate_queues("AVG", "a", [queue], ["a"]) is None
