"""The two plugins behind ``compile_filter``, in a real plugin host, and the third one that the docs show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kernel.enabling import context, loaded_from
from verniermq.kernel import MATCH_ALL, ConfigError, Subscription, SubscriptionParseFailed, tags_code
from verniermq.kernel.config import load
from verniermq.kernel.host.brokerhost import BrokerHost
from verniermq.plugins.filter import sql, tag
from verniermq.testing import check_filter

PAGE = Path(__file__).parents[3] / "docs" / "plugins" / "filter.md"
BOTH = """
[plugins]
enable = ["filter", "sql"]
[plugins.sql]
from = "verniermq.plugins.filter.sql:Plugin"
"""


def host_with(folder: Path, toml: str) -> BrokerHost:
    file = folder / "broker.toml"
    file.write_text(toml)
    return loaded_from(load(file, environ={}))


def test_the_host_asks_the_plugin_whose_type_it_is(tmp_path: Path) -> None:
    host = host_with(tmp_path, BOTH)

    tags = host.compile_filter(Subscription("t", "paid || refunded", "TAG"))
    conditions = host.compile_filter(Subscription("t", "price > 100", "SQL92"))

    assert tags is not None
    assert tags.tag_codes == {tags_code("paid"), tags_code("refunded")}
    assert tags.test is None
    assert conditions is not None
    assert conditions.tag_codes is None
    assert conditions.test is not None
    assert conditions.test({"price": "101"})
    assert not conditions.test({"price": "cheap"})
    assert host.compile_filter(Subscription("t", "x", "SQL2016")) is None


def test_a_bad_expression_is_refused_and_does_not_count_as_a_failure(tmp_path: Path) -> None:
    host = host_with(tmp_path, BOTH)

    for expression, kind in (("||", "TAG"), ("price >", "SQL92")):
        with pytest.raises(SubscriptionParseFailed):
            host.compile_filter(Subscription("t", expression, kind))

    assert [plugin.failures for plugin in host.active.values()] == [0, 0]


def test_the_settings_come_from_their_tables(tmp_path: Path) -> None:
    limits = "max_length = 10\nmax_depth = 2\ncache_size = 0\n[plugins.filter]\nmax_tags = 2\n"
    host = host_with(tmp_path, BOTH + limits)

    with pytest.raises(SubscriptionParseFailed, match="3 tags, the limit is 2"):
        host.compile_filter(Subscription("t", "a || b || c"))
    with pytest.raises(SubscriptionParseFailed, match="11 characters exceeds the limit of 10"):
        host.compile_filter(Subscription("t", "price > 100", "SQL92"))
    with pytest.raises(SubscriptionParseFailed, match="nested more than 2 levels"):
        host.compile_filter(Subscription("t", "(((a)))", "SQL92"))


@pytest.mark.parametrize("line", ["max_depth = 65", "max_depth = 0", "max_length = 0", "cache_size = -1"])
def test_a_setting_out_of_range_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=line.split()[0]):
        host_with(tmp_path, BOTH + line)


def test_the_tag_plugin_keeps_the_contract() -> None:
    good = [Subscription("t", text, "TAG") for text in ("*", "a", "a || b", " || ", "订单 || 😀", "polygenelubricants")]
    bad = [Subscription("t", text, "TAG") for text in ("||", "||||", " || ".join(map(str, range(1025))))]

    check_filter(tag.Plugin(tag.Config(), context()).compile_filter, good, bad)


def test_the_sql_plugin_keeps_the_contract() -> None:
    conditions = ("a = 1", "a > b", "a BETWEEN 1 AND 5.5", "a = TRUE OR NOT (b <> 'x')", "a IS NULL", "TRUE")
    good = [Subscription("t", text, "SQL92") for text in conditions]
    bad = [Subscription("t", text, "SQL92") for text in ("", "*", "a =", "a = NULL", "(" * 60 + "a", "a" * 5000)]

    check_filter(sql.Plugin(sql.Config(), context()).compile_filter, good, bad)


def test_tags_named_twice_count_once() -> None:
    plugin = tag.Plugin(tag.Config(max_tags=2), context())

    assert plugin.compile_filter(Subscription("t", "a || b || a || b")) is not None


def test_all_messages_and_no_type_mean_what_rocketmq_means() -> None:
    plugin = tag.Plugin(tag.Config(), context())

    assert plugin.compile_filter(Subscription("t", "*")) is MATCH_ALL
    assert plugin.compile_filter(Subscription("t", "")) is MATCH_ALL
    assert plugin.compile_filter(Subscription("t", "a", "")) == plugin.compile_filter(Subscription("t", "a", "TAG"))


def test_an_expression_is_compiled_once_while_the_cache_holds_it() -> None:
    plugin = sql.Plugin(sql.Config(cache_size=2), context())
    first = plugin.compile_filter(Subscription("t", "a = 1", "SQL92"))

    assert plugin.compile_filter(Subscription("other", "a = 1", "SQL92")) is first

    for number in (2, 3):
        plugin.compile_filter(Subscription("t", f"a = {number}", "SQL92"))
    assert plugin.compile_filter(Subscription("t", "a = 1", "SQL92")) is not first


def test_the_plugin_shown_in_the_docs_works(tmp_path: Path) -> None:
    example = next(code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "GLOB" in code)
    assert len(example.splitlines()) < 30
    (tmp_path / "glob_filter.py").write_text(example)
    host = host_with(tmp_path, '[plugins]\nenable = ["filter", "glob_filter.py"]\n')

    subscription = Subscription("t", "region=eu-* kind=pa?d", "GLOB")
    check_filter(host.compile_filter, good=[subscription], bad=[Subscription("t", "region", "GLOB")])
    compiled = host.compile_filter(subscription)

    assert compiled is not None
    assert compiled.test is not None
    assert compiled.test({"region": "eu-west", "kind": "paid"})
    assert not compiled.test({"region": "eu-west", "kind": "void"})
    assert not compiled.test({"region": "eu-west"})


def test_a_tag_expression_that_would_take_long_to_hash_is_refused() -> None:
    longest = "x" * tag.LONGEST_EXPRESSION

    assert tag.compile_tags(longest, 2).tag_codes == {tags_code(longest)}
    with pytest.raises(SubscriptionParseFailed, match=r"65537 characters, the limit is 65536"):
        tag.compile_tags(longest + "x", 2)
