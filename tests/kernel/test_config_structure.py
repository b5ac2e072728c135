"""Tables become classes, or one exact line says why not."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.kernel.config import Duration, Size, setting, settings_of, structure
from verniermq.kernel.config.schema import StoreSettings
from verniermq.kernel.config.text import PlainText
from verniermq.kernel.errors import ConfigError
from verniermq.plugins.retention.rules import Config as RetentionSettings


class Colour(enum.Enum):
    RED = 1
    DARK_BLUE = 2


class Mode(enum.Enum):
    FAST = "fast"
    SAFE = "safe"


@attrs.frozen
class Rule:
    topic: str
    rate: float = 1.0
    token: str = attrs.field(default="", metadata={"secret": True})


@attrs.frozen
class Everything:
    """One setting of each kind that a table can hold."""

    flag: bool = setting(True, "A switch.")
    number: int = setting(3, "A number.", at_least=1, at_most=9)
    ratio: float = setting(0.5, "A ratio.", at_least=0)
    text: str = setting("a", "A text.")
    mode: Literal["async", "sync"] = setting("async", "A choice.")
    colour: Colour = setting(Colour.RED, "A colour.")
    way: Mode = setting(Mode.FAST, "A way.")
    size: Size = setting(Size(4096), "A size.", at_least=1024, at_most=1 << 20)
    wait: Duration = setting(Duration(5.0), "A duration.", at_least=0.001)
    maybe: int | None = setting(None, "Perhaps.", at_most=5)
    either: int | Duration | bool = setting(1, "Either.")
    names: list[str] = setting([], "Names.")
    ports: tuple[int, ...] = setting((), "Ports.", at_least=1, at_most=65535)
    sizes: dict[str, Size] = setting({}, "Sizes.", at_most=1 << 30)
    folder: Path = setting(Path("."), "A folder.")
    rule: Rule = setting(Rule("t", 2.0), "A rule.")
    rules: list[Rule] = setting([], "Rules.")
    by_name: dict[str, Rule] = setting({}, "Rules by name.")
    password: str = setting(
        "", "A password.", secret=True, check=lambda text: "8 or more" if 0 < len(text) < 8 else None
    )
    anything: Any = setting(0, "Anything.")
    from_: str = setting("", "A key that Python could not have.")


def read(**table: object) -> Everything:
    return structure(Everything, table, "plugins.x", "broker.toml")


def refusal(**table: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read(**table)
    return str(caught.value).removeprefix("broker.toml: [plugins.x] ")


def test_an_empty_table_means_the_defaults() -> None:
    assert read() == Everything()


def test_each_kind_is_read() -> None:
    made = read(
        flag=False,
        number=9,
        ratio=2,
        text="b",
        mode="sync",
        colour="dark_blue",
        way="safe",
        size="64KiB",
        wait="1h30m",
        maybe=5,
        either="90s",
        names=["a", "b"],
        ports=[80, 443],
        sizes={"big": "1GiB", "small": 7},
        folder="/srv",
        rule={"topic": "orders"},
        rules=[{"topic": "a", "rate": 3}],
        by_name={"b": {"topic": "b"}},
        password="long enough",
        anything=[1, "x"],
        **{"from": "there"},
    )

    assert made == Everything(
        flag=False,
        number=9,
        ratio=2.0,
        text="b",
        mode="sync",
        colour=Colour.DARK_BLUE,
        way=Mode.SAFE,
        size=Size(65536),
        wait=Duration(5400.0),
        maybe=5,
        either=Duration(90.0),
        names=["a", "b"],
        ports=(80, 443),
        sizes={"big": Size(1 << 30), "small": Size(7)},
        folder=Path("/srv"),
        rule=Rule("orders", 2.0),
        rules=[Rule("a", 3.0)],
        by_name={"b": Rule("b")},
        password="long enough",
        anything=[1, "x"],
        from_="there",
    )
    assert isinstance(made.ratio, float)


def test_a_number_without_a_unit_that_looks_like_rocketmqs_is_refused_with_both_readings() -> None:
    def refused(cls: type, where: str, **table: object) -> str:
        with pytest.raises(ConfigError) as caught:
            structure(cls, table, where)
        return str(caught.value)

    assert refused(StoreSettings, "store", flush_interval=500) == (
        'broker.toml: [store] flush_interval = 500: a number alone is seconds; say which you mean: "500ms" or "500s"'
    )
    assert refused(StoreSettings, "store", flush_timeout=5000).endswith('mean: "5000ms"'), "5000s is too long anyway"
    assert refused(RetentionSettings, "plugins.retention", max_age=72).endswith('mean: "72h" or "72d" or "72s"')
    assert structure(StoreSettings, {"flush_interval": "500s"}, "store").flush_interval == 500
    assert structure(RetentionSettings, {"max_age": 0}, "plugins.retention").max_age == 0


def test_bare_numbers_are_bytes_and_seconds() -> None:
    made = read(size=2048, wait=2)
    assert (made.size, made.wait) == (2048, 2.0)


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"flag": 1}, "flag = 1: expected true or false"),
        ({"flag": "yes"}, 'flag = "yes": expected true or false'),
        ({"number": "x"}, 'number = "x": expected a whole number from 1 to 9'),
        ({"number": True}, "number = true: expected a whole number from 1 to 9"),
        ({"number": 3.0}, "number = 3.0: expected a whole number from 1 to 9"),
        ({"number": 10}, "number = 10: expected a whole number from 1 to 9"),
        ({"ratio": -0.5}, "ratio = -0.5: expected a number of at least 0"),
        ({"ratio": float("nan")}, "ratio = nan: expected a number of at least 0"),
        ({"ratio": False}, "ratio = false: expected a number of at least 0"),
        ({"text": 5}, "text = 5: expected a text"),
        ({"mode": "fast"}, 'mode = "fast" is not one of "async", "sync"'),
        ({"mode": "asinc"}, 'mode = "asinc" is not one of "async", "sync"; did you mean "async"?'),
        ({"colour": 1}, 'colour = 1 is not one of "red", "dark_blue"'),
        ({"way": "fats"}, 'way = "fats" is not one of "fast", "safe"; did you mean "fast"?'),
        ({"size": "1XiB"}, 'size = "1XiB": expected a size such as "4MiB" from 1KiB to 1MiB'),
        ({"size": "1B"}, 'size = "1B": expected a size such as "4MiB" from 1KiB to 1MiB'),
        ({"size": 2048.0}, 'size = 2048.0: expected a size such as "4MiB" from 1KiB to 1MiB'),
        ({"wait": "0s"}, 'wait = "0s": expected a duration such as "500ms" or "1h30m" of at least 1ms'),
        ({"wait": float("inf")}, 'wait = inf: expected a duration such as "500ms" or "1h30m" of at least 1ms'),
        ({"wait": 500}, 'wait = 500: a number alone is seconds; say which you mean: "500ms" or "500s"'),
        (
            {"wait": PlainText("5000")},
            'wait = "5000": a number alone is seconds; say which you mean: "5000ms" or "5000s"',
        ),
        ({"maybe": 6}, "maybe = 6: expected a whole number of at most 5"),
        (
            {"either": []},
            'either = []: expected a whole number or a duration such as "500ms" or "1h30m" or true or false',
        ),
        ({"names": "a b"}, 'names = "a b": expected a list, each item a text; write ["a", "b"]'),
        (
            {"ports": "80,81"},
            'ports = "80,81": expected a list, each item a whole number from 1 to 65535; write [80, 81]',
        ),
        ({"names": ["a", 3]}, "names[1] = 3: expected a text"),
        ({"ports": [80, 0]}, "ports[1] = 0: expected a whole number from 1 to 65535"),
        ({"sizes": 3}, 'sizes = 3: expected a table, each value a size such as "4MiB" of at most 1GiB'),
        ({"rule": 3}, "rule = 3: expected a table"),
        ({"flags": True}, "has no setting 'flags'; did you mean 'flag'?"),
        ({"from_": ""}, "has no setting 'from_'; did you mean 'from'?"),
        ({"text": "a\nb" * 100, "flag": 0}, "flag = 0: expected true or false"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(table: dict[str, object], line: str) -> None:
    assert refusal(**table) == line


def test_a_mistake_inside_a_table_is_reported_with_its_place() -> None:
    assert refusal(sizes={"big": "?"}) == (
        'broker.toml: [plugins.x.sizes] big = "?": expected a size such as "4MiB" of at most 1GiB'
    )
    assert refusal(rule={"rat": 1}) == "broker.toml: [plugins.x.rule] has no setting 'rat'; did you mean 'rate'?"
    assert refusal(rules=[{"topic": "a"}, {}]) == (
        "broker.toml: [plugins.x.rules[1]] lacks the setting 'topic': expected a text"
    )
    assert refusal(by_name={"b": {"topic": 1}}) == "broker.toml: [plugins.x.by_name.b] topic = 1: expected a text"


@pytest.mark.parametrize(
    "table",
    [
        {"password": "hush"},
        {"password": ["hush"]},
        {"pasword": "hush"},
        {"rule": {"topic": "t", "token": ["hush"]}},
        {"rules": {"topic": "t", "token": "hush"}},
        {"rules": [{"topic": "t", "tokn": "hush"}]},
        {"number": [{"token": "hush"}]},
    ],
)
def test_a_secret_is_in_no_message(table: dict[str, object]) -> None:
    assert "hush" not in refusal(**table)


def test_a_secret_is_in_no_repr() -> None:
    assert "hush-hush" not in repr(read(password="hush-hush"))


def test_a_part_of_a_table_leaves_the_rest_of_its_default() -> None:
    assert read(rule={"rate": 7}).rule == Rule("t", 7.0)


def test_limits_hold_in_python_too() -> None:
    with pytest.raises(ValueError, match="number = 10"):
        Everything(number=10)
    with pytest.raises(ValueError, match=r"password = \*\*\*: expected 8 or more"):
        Everything(password="short")


def test_lists_are_not_shared_between_configurations() -> None:
    Everything().names.append("a")
    assert Everything().names == []


def test_a_setting_needs_one_line_of_explanation() -> None:
    with pytest.raises(ValueError, match="one line"):
        setting(1, "")
    with pytest.raises(ValueError, match="one line"):
        setting(1, "two\nlines")


# --- classes that know nothing of us -------------------------------------------------------


def _even(_instance: object, _attribute: attrs.Attribute[int], value: int) -> None:
    if value % 2:
        raise ValueError(f"not even:\n{value}")


@attrs.define
class Strange:
    """A third party's class: plain attrs, validators of its own, a converter, a private field."""

    limit: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    pairs: int = attrs.field(default=2, validator=_even)
    low: int = 0
    high: int = attrs.field(default=10)
    words: tuple[str, ...] = attrs.field(default="a b", converter=lambda text: tuple(text.split()))
    _hidden: str = "h"
    key: str = attrs.field(default="", metadata={"secret": True}, validator=attrs.validators.max_len(3))
    unset: int = attrs.field(init=False, default=5)

    @high.validator
    def _above(self, _attribute: attrs.Attribute[int], value: int) -> None:
        if value <= self.low:
            raise ValueError(f"must be above low, {self.low}")

    def __attrs_post_init__(self) -> None:
        if self.limit == 13:
            raise RuntimeError("unlucky")


def test_a_plain_attrs_class_is_read() -> None:
    made = structure(Strange, {"limit": 5, "hidden": "x", "words": "c d"}, "plugins.s")
    assert made == Strange(limit=5, hidden="x", words="c d")


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"limit": 0}, "[plugins.s] limit = 0: 'limit' must be >= 1: 0"),
        ({"limit": True}, "[plugins.s] limit = true: expected a whole number"),
        ({"pairs": 3}, "[plugins.s] pairs = 3: not even: 3"),
        ({"low": 8, "high": 8}, "[plugins.s] high = 8: must be above low, 8"),
        ({"words": 3}, "[plugins.s] words = 3: 'int' object has no attribute 'split'"),
        ({"key": "hush"}, '[plugins.s] key = "***": refused'),
        ({"limit": 13}, "[plugins.s] unlucky"),
        ({"unset": 1}, "[plugins.s] has no setting 'unset'; "),
    ],
)
def test_its_own_validators_are_reported_in_the_same_form(table: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        structure(Strange, table, "plugins.s")
    assert str(caught.value).startswith(f"broker.toml: {line}")


def test_a_field_without_annotation_has_the_kind_of_its_default() -> None:
    made = attrs.make_class("Made", {"count": attrs.field(default=1), "free": attrs.field(default=None)})
    assert settings_of(made)["count"].kind is int
    with pytest.raises(ConfigError, match='count = "x": expected a whole number'):
        structure(made, {"count": "x"}, "plugins.m")
    assert structure(made, {"free": [1]}, "plugins.m") == made(free=[1])


toml_values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(settings_of(Everything))) | st.text(max_size=8), toml_values, max_size=4))
def test_any_table_gives_settings_or_one_line(table: dict[str, object]) -> None:
    said = None
    try:
        structure(Everything, table, "plugins.x")
    except ConfigError as error:
        said = str(error)
    assert said is None or len(said.splitlines()) == 1
    assert said is None or said.startswith("broker.toml: [plugins.x")


@pytest.mark.parametrize("text", ["80 81", "80,81", "80, 81", "[80, 81]"])
def test_a_list_of_numbers_as_a_text_has_commas_or_spaces(text: str) -> None:
    assert read(ports=PlainText(text)).ports == (80, 81)
