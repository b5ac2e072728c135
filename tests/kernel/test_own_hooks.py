"""Hooks that a plugin brings: specified by it, implemented by others, and gone with it."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytest

from tests.kernel.enabling import enabled, loaded
from verniermq.kernel import Context, Declaration, NoConfig, PluginError, RequestRefused, hookimpl, hookspec, hookspecs
from verniermq.kernel.hookspec import kind_of

pytestmark = pytest.mark.anyio


@hookspec("question")
def price_of(article: str, count: int) -> int | None:
    """Say what so many of an article cost. Silence means that it is not for sale."""


@hookspec("announcement")
def sold(article: str) -> None:
    """An article was sold."""


@hookspec("change")
def before_sale(basket: list[str]) -> None:
    """Add to a basket, or refuse it."""


@attrs.define(eq=False)
class Plain:
    declaration: ClassVar = Declaration(api=1, summary="Brings nothing.")
    config: NoConfig
    broker: Context
    heard: list[Any] = attrs.field(factory=list, init=False)


class Shop(Plain):
    declaration: ClassVar = Declaration(api=1, summary="A shop.", hookspecs=(price_of, sold, before_sale))

    def sell(self, article: str, count: int) -> int | None:
        price = self.broker.hooks.ask(price_of, article, count)
        self.broker.hooks.announce(sold, article)
        return price


class Books(Plain):
    @hookimpl(optionalhook=True)
    def price_of(self, article: str) -> int | None:
        return 30 if article == "book" else None

    @hookimpl(optionalhook=True)
    def sold(self, article: str) -> None:
        self.heard.append(article)


class Anything(Plain):
    @hookimpl(optionalhook=True)
    def price_of(self, article: str, count: int) -> int | None:
        return 100 * count

    @hookimpl(optionalhook=True)
    def sold(self, article: str) -> None:
        raise RuntimeError("stumbled")

    @hookimpl(optionalhook=True)
    def before_sale(self, basket: list[str]) -> None:
        if "wine" in basket:
            raise RequestRefused("no wine on a Sunday")
        basket.append("leaflet")


def test_a_plugin_asks_and_tells_others_through_hooks_of_its_own() -> None:
    host = loaded(**enabled(shop=Shop, books=Books, anything=Anything))
    shop: Shop = host.active["shop"].instance

    assert [shop.sell("book", 2), shop.sell("pen", 2)] == [30, 200]
    assert list(host.ask_all(price_of, "book", 2)) == [30, 200]
    assert host.active["books"].instance.heard == ["book", "pen"]
    assert host.active["anything"].failures == 2, "it is contained and counted as anybody's"
    assert host.hook_names[-3:] == ["price_of", "sold", "before_sale"]
    assert [call.plugin.name for call in host.calls(price_of)] == ["books", "anything"]


def test_a_change_of_its_own_may_be_refused() -> None:
    host = loaded(**enabled(shop=Shop, anything=Anything))
    basket = ["book"]

    host.announce(before_sale, basket)
    assert basket == ["book", "leaflet"]
    with pytest.raises(RequestRefused, match="no wine"):
        host.announce(before_sale, ["wine"])


def test_the_order_of_the_plugins_does_not_matter_for_who_brings_a_hook() -> None:
    host = loaded(**enabled(books=Books, shop=Shop))

    assert host.ask(price_of, "book", 1) == 30


def test_without_the_plugin_that_brings_it_there_is_no_such_hook() -> None:
    host = loaded(**enabled(books=Books))

    assert "price_of" not in host.hook_names
    assert list(host.active["books"].calls) == []
    with pytest.raises(KeyError):
        host.calls(price_of)


class Insisting(Plain):
    @hookimpl
    def price_of(self, article: str) -> int | None:
        return None


def test_an_implementation_that_is_not_optional_needs_the_plugin_that_brings_the_hook() -> None:
    with pytest.raises(PluginError, match="plugin 'x' implements 'price_of', which is no hook"):
        loaded(**enabled(x=Insisting))
    assert loaded(**enabled(shop=Shop, x=Insisting)).is_active("x")


class WrongArgument(Plain):
    @hookimpl(optionalhook=True)
    def price_of(self, thing: str) -> int | None:
        return None


class Waiting(Plain):
    @hookimpl(optionalhook=True)
    async def price_of(self, article: str) -> int | None:
        return None


@pytest.mark.parametrize(
    ("plugin_class", "complaint"),
    [(WrongArgument, "does not fit:.*thing"), (Waiting, "price_of must be a plain def")],
)
def test_an_implementation_has_to_fit_the_specification(plugin_class: type, complaint: str) -> None:
    with pytest.raises(PluginError, match=f"plugin 'x'.*{complaint}"):
        loaded(**enabled(shop=Shop, x=plugin_class))


class OtherShop(Shop):
    declaration: ClassVar = Declaration(api=1, summary="Another shop.", hookspecs=(price_of,))


class Kernels(Plain):
    declaration: ClassVar = Declaration(api=1, summary="Brings the kernel's.", hookspecs=(hookspecs.topics_changed,))


def unmarked(article: str) -> None:
    """Looks like a hook."""


class Unmarked(Plain):
    declaration: ClassVar = Declaration(api=1, summary="Forgot the mark.", hookspecs=(unmarked,))


@pytest.mark.parametrize(
    ("classes", "complaint"),
    [
        ({"shop": Shop, "x": OtherShop}, "plugin 'x' declares the hook 'price_of', which is specified already"),
        ({"x": Kernels}, "plugin 'x' declares the hook 'topics_changed', which is specified already"),
        ({"x": Unmarked}, "plugin 'x' declares the hook 'unmarked', which is not marked with hookspec"),
    ],
    ids=["twice", "the kernel's", "unmarked"],
)
def test_a_hook_that_cannot_be_brought_is_refused(classes: dict[str, type], complaint: str) -> None:
    with pytest.raises(PluginError, match=complaint) as raised:
        loaded(**enabled(**classes))
    assert raised.value.plugin == "x"


def test_two_hosts_may_have_the_same_hook_each() -> None:
    one, other = loaded(**enabled(shop=Shop, books=Books)), loaded(**enabled(shop=Shop))

    assert (one.ask(price_of, "book", 1), other.ask(price_of, "book", 1)) == (30, None)


def test_a_specification_says_what_it_is_and_stays_a_function() -> None:
    kinds = {specification.__name__: kind_of(specification) for specification in (price_of, sold, before_sale)}

    assert {name: kind and kind.shape for name, kind in kinds.items()} == {
        "price_of": "question",
        "sold": "announcement",
        "before_sale": "change",
    }
    assert {name: kind and kind.guards for name, kind in kinds.items()} == {
        "price_of": False,
        "sold": False,
        "before_sale": True,
    }
    assert kind_of(unmarked) is None
