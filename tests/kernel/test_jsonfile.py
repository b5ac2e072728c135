"""RocketMQ's JSON files and the dialect that they are written in."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.kernel.jsonlimits import FROM_PEER, FROM_SERVER, parse_json
from verniermq.kernel.tables import jsonfile
from verniermq.kernel.tables.jsonfile import DamagedJson, JsonFile, object_keyed_map, parse_fastjson

APACHE_OFFSETS = """{
	"dataVersion":{
		"counter":3,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"groupTopicMap":{
		"CG_demo":["T1","%RETRY%CG_demo"]
	},
	"offsetTable":{
		"T1@CG_demo":{0:12,1:7
		},
		"%RETRY%CG_demo@CG_demo":{0:0
		}
	}
}"""


def test_bare_integer_keys_are_read_as_if_they_were_quoted() -> None:
    found = parse_fastjson(APACHE_OFFSETS)

    assert found["offsetTable"] == {"T1@CG_demo": {"0": 12, "1": 7}, "%RETRY%CG_demo@CG_demo": {"0": 0}}
    assert found["groupTopicMap"] == {"CG_demo": ["T1", "%RETRY%CG_demo"]}


def test_object_keys_become_tuples() -> None:
    found = parse_fastjson(b'{"offsetTable":{{"topic":"T1","brokerName":"broker-a","queueId":0}:42, -1 : {}}}')

    key = (("brokerName", "broker-a"), ("queueId", 0), ("topic", "T1"))
    assert found == {"offsetTable": {key: 42, "-1": {}}}
    assert dict(key) == {"topic": "T1", "brokerName": "broker-a", "queueId": 0}


def test_text_that_looks_like_a_key_is_left_alone() -> None:
    found = parse_fastjson(r'{1:"{0:1,2:3}", "a\"b":"\u00e9\n", "c":[true,false,null,-1.5e3,[],{}]}')

    assert found == {"1": "{0:1,2:3}", 'a"b': "é\n", "c": [True, False, None, -1500.0, [], {}]}


def test_a_map_with_object_keys_is_written_as_fastjson_reads_it() -> None:
    queue = {"topic": "T1", "queueId": 3, "brokerName": "b"}
    written = object_keyed_map([(queue, {"offset": 5}), ({"topic": "é"}, 7)])

    assert written == '{{"brokerName":"b","queueId":3,"topic":"T1"}:{"offset":5},{"topic":"é"}:7}'.encode()
    assert parse_fastjson(written) == {tuple(sorted(queue.items())): {"offset": 5}, (("topic", "é"),): 7}
    assert object_keyed_map([]) == b"{}"


def test_references_to_an_object_written_before_are_followed() -> None:
    found = parse_fastjson('{"a":{"x":[1,{"y":2}]},"b":{"$ref":"$.a"},1:{"$ref":"$.a.x[1]"}}')

    assert found["b"] == {"x": [1, {"y": 2}]}
    assert found["1"] == {"y": 2}


@pytest.mark.parametrize("text", ['{"a":{"$ref":"$.nowhere"}}', '{"a":{"$ref":"$.a"}}', '{"a":{"$ref":"@"}}'])
def test_a_reference_that_leads_nowhere_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="reference"):
        parse_fastjson(text)


@pytest.mark.parametrize(
    "text",
    ["", "{", "{1:2", "{1 2}", "[1,]", '{"a":1}x', "{{}}", "{true:1}", '{"a" "b"}', "{1:nul}", "[" * 5000, "{[1]:2}"],
)
def test_broken_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        parse_fastjson(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def has_reference(value: Any) -> bool:
    return '"$ref"' in json.dumps(value)


@given(json_values.filter(lambda value: not has_reference(value)))
def test_plain_json_reads_the_same_in_both_parsers(value: Any) -> None:
    text = json.dumps(value)

    assert parse_fastjson(text) == value
    assert parse_fastjson(f"{{1:{text}}}") == {"1": value}


@given(st.text(st.sampled_from('{}[]:,"0a\\ntrue-.$ref '), max_size=60) | st.binary(max_size=40))
def test_arbitrary_text_gives_a_value_or_a_value_error(text: str | bytes) -> None:
    try:
        parse_fastjson(text)
    except ValueError:
        pass


# --- how much is read ----------------------------------------------------------------------


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of the parser were called: the work, whatever the machine."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == jsonfile.__file__

    sys.setprofile(count)
    try:
        work()
    except ValueError:
        pass
    finally:
        sys.setprofile(None)
    return calls


def doubling(steps: int) -> str:
    """Two references to what has two references to what …"""
    lines = ['"a0":[1]', *[f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, steps)]]
    return "{" + ",".join(lines) + "}"


@pytest.mark.parametrize("steps", [16, 20])
def test_references_that_double_at_every_step_are_given_up_after_a_bounded_number(steps: int) -> None:
    if steps == 16:  # the least that is too much: small enough to be counted to its end
        assert calls_of(lambda: parse_fastjson(doubling(steps))) < 8 * FROM_PEER.slow_values

    with pytest.raises(ValueError, match="references"):
        parse_fastjson(doubling(steps))


def test_a_long_path_is_walked_once_however_often_it_is_referred_to() -> None:
    nested: dict[str, Any] = {"end": 1}
    for _ in range(20):
        nested = {"key": nested}
    reference = {"$ref": "$" + ".key" * 20 + ".end"}
    text = json.dumps({**nested, "list": [reference] * 2000})

    steps = 0
    walk = jsonfile._PATH_STEP

    class Counting:
        def match(self, text: str, at: int) -> Any:
            nonlocal steps
            steps += 1
            return walk.match(text, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonfile, "_PATH_STEP", Counting())
        found = parse_fastjson(text)

    assert found["list"] == [1] * 2000
    assert steps == 21


@pytest.mark.parametrize("text", ["[" * 40 + "]" * 40, "{0:" * 40 + "1" + "}" * 40, '{"a":' * 40 + "1" + "}" * 40])
def test_what_is_nested_too_deep_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="32 levels"):
        parse_fastjson(text)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: data.decode()])
def test_a_depth_that_is_allowed_is_read_from_any_kind_of_text(kind: Callable[[bytes], Any]) -> None:
    deepest = b"[" * 32 + b"]" * 32

    assert parse_json(kind(deepest)) == parse_fastjson(kind(deepest)) == json.loads(deepest)
    with pytest.raises(ValueError, match="32 levels"):
        parse_json(kind(b"[" + deepest + b"]"))


def test_a_text_of_too_many_values_is_refused_before_it_is_parsed() -> None:
    many = "[" + "[]," * 100_000 + "1]"

    for parse in (parse_json, parse_fastjson):
        with pytest.raises(ValueError, match="values; at most 100000 are read"):
            parse(many)

    assert len(parse_json(many, FROM_SERVER)) == 100_001


def test_of_the_dialect_fewer_values_are_read_since_each_takes_longer() -> None:
    many = "{" + ",".join(f"{n}:0" for n in range(50_000)) + "}"

    assert calls_of(lambda: parse_fastjson(many)) < 8 * FROM_PEER.slow_values
    with pytest.raises(ValueError, match="at most 10000 values"):
        parse_fastjson(many)
    assert len(parse_fastjson(many, FROM_SERVER)) == 50_000


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 30, "-" + "9" * 30, "9" * 5000, "1" * 5000 + ".5", "٣"])
def test_a_number_that_could_not_be_written_again_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="expected a"):
        parse_fastjson(f"{{0:{number}}}")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        parse_fastjson(r'{0:"\ud800"}')
    with pytest.raises(ValueError, match="surrogate"):
        parse_fastjson(r'{"\udfff":1}')

    assert parse_fastjson(r'{0:"\ud83d\ude00"}') == {"0": "\N{GRINNING FACE}"}


def test_our_own_files_are_read_whatever_their_length(file: JsonFile) -> None:
    queues = {str(n): n for n in range(150_000)}
    file.save({"offsetTable": queues})

    assert file.load() == {"offsetTable": queues}


# --- files ---------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> JsonFile:
    return JsonFile(tmp_path / "config" / "topics.json")


def test_a_file_is_read_back_and_its_predecessor_kept(file: JsonFile) -> None:
    assert file.load() is None
    file.save({"a": 1})
    file.save({"a": {"é": {0: 5}}})

    assert file.load() == {"a": {"é": {"0": 5}}}
    assert json.loads(file.backup.read_text()) == {"a": 1}
    assert sorted(p.name for p in file.path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_what_is_written_is_plain_json(file: JsonFile) -> None:
    file.save({"offsetTable": {"T1@CG": {1: 7, 0: 12}}})

    assert json.loads(file.path.read_text()) == {"offsetTable": {"T1@CG": {"0": 12, "1": 7}}}


def test_a_file_that_apache_wrote_is_read(file: JsonFile) -> None:
    file.path.parent.mkdir()
    file.path.write_text(APACHE_OFFSETS)

    assert file.load()["offsetTable"]["T1@CG_demo"] == {"0": 12, "1": 7}


@pytest.mark.parametrize("content", [None, b"", b"  \n", b'{"a":', b"\xff\xfe"])
def test_the_backup_is_read_when_the_file_is_missing_empty_or_broken(file: JsonFile, content: bytes | None) -> None:
    file.save({"a": 1})
    file.save({"a": 2})
    file.path.unlink()
    if content is not None:
        file.path.write_bytes(content)

    assert file.load() == {"a": 1}

    file.save({"a": 3})
    assert file.load() == {"a": 3}
    assert json.loads(file.backup.read_text()) in ({"a": 1}, {"a": 3})


def test_a_broken_backup_is_an_error_and_not_an_empty_table(file: JsonFile) -> None:
    file.save({"a": 1})
    file.save({"a": 2})
    file.path.write_bytes(b"{")
    file.backup.write_bytes(b"{")

    with pytest.raises(DamagedJson, match=r"topics\.json\.bak cannot be read"):
        file.load()


def test_a_crash_at_any_moment_of_a_save_leaves_old_or_new(file: JsonFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before each of its calls to the system, a save has changed nothing or everything."""

    class Crash(BaseException):
        pass

    stages = 0
    while True:
        file.save({"a": "old"})
        left = stages

        def step(real: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Crash
                left -= 1
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "open"):
                patch.setattr(os, name, step(getattr(os, name)))
            try:
                file.save({"a": "new"})
            except Crash:
                pass
            else:
                break
        assert file.load() in ({"a": "old"}, {"a": "new"})
        stages += 1
    assert stages >= 4
    assert file.load() == {"a": "new"}
