"""What the documentation page says is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.documented import blocks, example, settings
from tests.plugins.flow.picture import WHERE, picture
from verniermq.kernel import Command, RequestCode, ResponseCode, connect
from verniermq.kernel.config.structure import structure
from verniermq.plugins.flow import Config
from verniermq.plugins.flow.engine import Engine
from verniermq.testing import check_shaper, running_broker


def test_the_picture_is_current() -> None:
    assert WHERE.read_text(encoding="utf-8") == picture()


def test_the_documented_rules_are_accepted_and_apply() -> None:
    config = structure(Config, settings("flow"), "plugins.flow")

    gate = Engine(config.rules, config.breakers, config.system).gate("billing", "orders", "10.9.0.1@7")

    assert gate is not None
    assert [resource.name for resource in gate.resources] == [
        "resource billing:orders", "topic orders", "client 10.9.0.1@7",
    ]  # fmt: skip


def test_the_documented_bucket_keeps_the_contract() -> None:
    bucket = example("flow")["TokenBucket"]

    check_shaper(lambda: bucket(10, 10), 10)


@pytest.mark.anyio
async def test_the_documented_plugin_works_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token_bucket.py"
    file.write_text(blocks("flow", "python")[-1])
    ext = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}

    async with running_broker(plugins__enable=["default", str(file)]) as broker:
        connection = await connect(broker.advertised.text)
        sends = [Command.request(RequestCode.SEND_MESSAGE_V2, dict(ext), b"x") for _ in range(200)]
        codes = [(await connection.request(send)).code for send in sends]
        connection.close()

    assert codes[:20] == [ResponseCode.SUCCESS] * 20
    assert ResponseCode.SYSTEM_BUSY in codes
