"""etcd's JSON gateway, as brokers use it."""

from __future__ import annotations

import pytest

from tests.plugins.ha.coordinators import check_coordinator, check_watches, state
from tests.plugins.ha.gateway import running_gateway
from verniermq.plugins.ha.coordinator import CoordinatorTrouble
from verniermq.plugins.ha.etcd import Etcd, EtcdRefused

pytestmark = pytest.mark.anyio


async def test_it_does_what_a_coordinator_must() -> None:
    async with running_gateway() as gateway:
        await check_coordinator(lambda number: Etcd([gateway.url], "c/1", "b", ttl=2))
        await check_watches(lambda number: Etcd([gateway.url], "c/1", "b2", ttl=2))


async def test_the_next_server_is_asked_when_one_does_not_answer() -> None:
    async with running_gateway() as gateway:
        etcd = Etcd(["http://127.0.0.1:1", gateway.url], "c", "b")

        assert (await etcd.read()).state is None


async def test_whether_a_change_was_made_is_not_known_without_an_answer() -> None:
    async with running_gateway() as gateway:
        etcd = Etcd([gateway.url, gateway.url], "c", "b")
        gateway.lose_answer = lambda path: path == "kv/txn"
        with pytest.raises(CoordinatorTrouble, match="etcd does not answer"):
            await etcd.change(state(1, 1), 0)
        gateway.lose_answer = lambda path: False

        assert await etcd.change(state(1, 1), 0) == 0
        assert (await etcd.read()).state == state(1, 1)


async def test_it_logs_in_and_again_when_its_token_has_run_out() -> None:
    async with running_gateway() as gateway:
        gateway.users["mq"] = "secret"
        etcd = Etcd([gateway.url], "c", "b", user="mq", password="secret")
        assert (await etcd.read()).state is None
        gateway.tokens.clear()

        assert await etcd.change(state(1, 1), 0)
        assert "token" in next(iter(gateway.tokens))


async def test_a_wrong_password_is_told() -> None:
    async with running_gateway() as gateway:
        gateway.users["mq"] = "secret"

        with pytest.raises(EtcdRefused, match="refuses auth/authenticate: authentication failed"):
            await Etcd([gateway.url], "c", "b", user="mq", password="wrong").read()


async def test_a_refusal_in_plain_words_is_told() -> None:
    async with running_gateway() as gateway:
        gateway.says_instead = "CommonName of client will be ignored"

        with pytest.raises(EtcdRefused, match=r"refuses kv/range: CommonName of client will be ignored \(400\)"):
            await Etcd([gateway.url], "c", "b").read()


async def test_what_is_no_state_is_told() -> None:
    async with running_gateway() as gateway:
        etcd = Etcd([gateway.url], "c", "b")
        await etcd._put("state", b"{}")

        with pytest.raises(CoordinatorTrouble, match="which is no state of brokers"):
            await etcd.read()


async def test_several_brokers_share_an_etcd() -> None:
    async with running_gateway() as gateway:
        one, other = Etcd([gateway.url], "c", "b"), Etcd([gateway.url], "c", "b2")
        assert await one.change(state(1, 1), 0)

        assert (await other.read()).state is None
