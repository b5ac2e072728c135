"""The table of Java's calls: what its Python column says can be written, and works out."""

from __future__ import annotations

import ast
import inspect
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from verniermq import client
from verniermq.client.java import CALLS, OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "client" / "coming-from-java.md").read_text()
ROW = re.compile(r"^\| (.*?) \| ((?:[^|]|\\\|)*) \|$", re.MULTILINE)
OBJECTS: dict[str, type] = {
    "producer": client.Producer,
    "transactions": client.TransactionProducer,
    "consumer": client.PushConsumer,
    "lite": client.LitePullConsumer,
    "puller": client.PullConsumer,
    "simple": client.SimpleConsumer,
    "admin": client.Admin,
    "message": client.ReceivedMessage,
    "result": client.SendResult,
    "pulled": client.PullResult,
}
NAMES: dict[str, Any] = {
    **{name: getattr(client, name) for name in client.__all__},
    **{name: object() for name in OBJECTS},
    "datetime": datetime,
    "print": print,
}


def rows() -> list[tuple[str, str]]:
    return [(java, python) for java, python in ROW.findall(PAGE) if java not in ("Java", "---")]


def snippets() -> list[str]:
    return [text.replace(r"\|", "|") for _, python in rows() for text in re.findall(r"`([^`]+)`", python)]


def _value(tree: ast.expr) -> Any:
    return eval(compile(ast.Expression(tree), "page", "eval"), dict(NAMES))


def _members(of: type) -> set[str]:
    fields = {name for one in of.__mro__ for name in (*getattr(one, "__annotations__", ()), *vars(one))}
    return fields | set(dir(of))


@pytest.mark.parametrize("text", snippets())
def test_the_python_column_can_be_written(text: str) -> None:
    code = ast.parse(text, mode="eval", feature_version=(3, 11)).body if not text.startswith("await ") else None
    awaited = code is None
    if code is None:
        code = ast.parse(text.removeprefix("await "), mode="eval").body
    call = code if isinstance(code, ast.Call) else None
    named = call.func if call is not None else code
    while isinstance(named, ast.Attribute) and isinstance(named.value, ast.Attribute):
        named = named.value
    if isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name) and named.value.id in OBJECTS:
        owner = OBJECTS[named.value.id]
        assert named.attr in _members(owner), f"{owner.__name__} has no {named.attr}"
        if call is not None and named is call.func:
            method = getattr(owner, named.attr)
            arguments = [_value(argument) for argument in call.args]
            options = {keyword.arg: _value(keyword.value) for keyword in call.keywords if keyword.arg}
            inspect.signature(method).bind(object(), *arguments, **options)
            assert inspect.iscoroutinefunction(method) is awaited, "whether it is awaited"
    else:
        assert not awaited
        _value(code)  # made for real: a wrong option or value is refused by the constructor


def test_every_java_name_that_an_error_explains_is_on_the_page() -> None:
    java = " ".join(left for left, _ in rows())
    rarely = {
        "accessChannel", "heartbeatBrokerInterval", "pollNameServerInterval", "offsetStore", "rpcHook",
        "pullThresholdSizeForQueue", "setTransactionCheckListener", "setMessageListener", "fetchMessageQueuesInBalance",
        "fetchMessageQueues", "sendMessageBack", "getStoreHostString", "getBornHostString",
    }  # fmt: skip

    missing = [
        name
        for name in (*OPTIONS, *CALLS)
        if name not in java and f"set{name[0].upper()}{name[1:]}" not in java and name not in rarely
    ]

    assert missing == []
