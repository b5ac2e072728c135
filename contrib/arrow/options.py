"""The options of ``format("verniermq")``: what Kafka's users know under the same names, and a few of our own.

Spark hands options over as texts, whatever their case. A wrong one is refused with what was expected, an unknown one
with the name that was probably meant.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs
import orjson

from verniermq.contrib.arrow.errors import BadOption, UnknownTableOption
from verniermq.contrib.arrow.offsets import EARLIEST, LATEST, Offsets, from_json
from verniermq.contrib.arrow.schema import COLUMNS, EVENT_COLUMNS
from verniermq.contrib.arrow.values import VALUE_COLUMNS, ValueOptions
from verniermq.kernel import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, MessageQueue, is_system_topic, parse_address
from verniermq.protocol.inflate import MAX_BODY

Value = TypeVar("Value")

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
MIB: Final = 1 << 20

READ: Final = (
    "nameServer", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss", "includeHeaders", "subExpression",
    "expressionType", "columns", "pushFilters", "path", "reader", "chunkSize", "retryTimeout", "decompress",
    "maxBodySize", "checkCrc", "group", "valueFormat", "valueSchema", "valueSchemaFile", "valueMessage", "inferSchema",
    "schemaRegistry", "schemaSubject", "mode", "events",
)  # fmt: skip
FLOW_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC})
"""Those of the brokers' own that messages go through: delayed ones, and halves of transactions."""
OF_SPARK: Final = ("checkpointLocation", "__datasource_name__")
"""Options that Spark itself puts among ours."""


class GivenOptions:
    """Options by name, whatever their case, as the types that they should have."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in (*known, *OF_SPARK)}
        self.values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in names:
                raise UnknownTableOption(name, known)
            self.values[names[name.lower()]] = str(value)

    def converted(self, name: str, default: Value, convert: Callable[[str], Value], expected: str) -> Value:
        text = self.values.get(name)
        if text is None:
            return default
        try:
            return convert(text)
        except ValueError as error:
            raise BadOption(name, text, f"{expected} ({error})" if str(error) else expected) from None

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, default)

    def flag(self, name: str, default: bool) -> bool:
        def convert(text: str) -> bool:
            return {"true": True, "false": False}[text.strip().lower()]

        try:
            return self.converted(name, default, convert, "")
        except KeyError:
            raise BadOption(name, self.values[name], "true or false") from None

    def number(self, name: str, default: int, least: int = 0) -> int:
        found = self.number_if_given(name, least)
        return default if found is None else found

    def number_if_given(self, name: str, least: int = 0) -> int | None:
        def convert(text: str) -> int | None:
            if int(text) < least:
                raise ValueError
            return int(text)

        return self.converted(name, None, convert, f"a whole number, {least} or more")

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of some words, in whatever case; the first if none is given."""
        value = self.text(name, choices[0])
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise BadOption(name, value, " or ".join(filter(None, choices)))

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.strip() for part in self.text(name).split(",") if part.strip()))

    def name_servers(self) -> tuple[str, ...]:
        text = self.text("nameServer") or os.environ.get("VERNIERMQ_NAMESRV") or DEFAULT_NAME_SERVER
        servers = tuple(part.strip() for part in re.split("[;,]", text) if part.strip())
        for server in servers:
            try:
                parse_address(server)
            except ValueError as error:
                raise BadOption("nameServer", text, f"host:port, several with ';' between ({error})") from None
        return servers

    def seconds(self, name: str, default: float) -> float:
        return self.converted(name, default, _seconds, "a time such as 30s, 500ms or 2m")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|)", text.strip())
    if found is None:
        raise ValueError
    return float(found[1]) * {"ms": 0.001, "s": 1, "": 1, "m": 60}[found[2]]


@attrs.frozen
class Topics:
    """Which topics, or which queues of them: exactly one of the four is set."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    queues: tuple[MessageQueue, ...] = ()
    everything: bool = False
    """All that producers, consumers and the brokers' own flow put into the log."""

    def matches(self, topic: str) -> bool:
        """Whether a pattern means a topic. The brokers' own topics have to be named; retry topics and dead letters
        are meant by a pattern that has a % in it."""
        if self.everything:
            return topic in FLOW_TOPICS or not is_system_topic(topic)
        if is_system_topic(topic) or (topic.startswith("%") and "%" not in self.pattern):
            return False
        return re.fullmatch(self.pattern, topic) is not None


@attrs.frozen
class ReadOptions:
    name_servers: tuple[str, ...]
    topics: Topics
    path: str
    """A store's folder on a shared disk; empty to ask brokers."""
    starting: Offsets | int
    """Offsets of queues, or ``EARLIEST`` or ``LATEST`` for all."""
    ending: Offsets | int
    starting_timestamp: int | None
    ending_timestamp: int | None
    max_offsets_per_trigger: int | None
    min_partitions: int
    fail_on_data_loss: bool
    sub_expression: str
    expression_type: str
    columns: tuple[str, ...]
    push_filters: bool
    reader: str
    chunk_bytes: int
    retry_seconds: float
    decompress: bool
    max_body_size: int
    check_crc: bool
    group: str
    value: ValueOptions | None = None
    """How bodies become typed values; ``None`` for bodies as they are."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """
        Raises:
            UnknownTableOption: there is no such option.
            BadOption: a value is wrong, or does not go with another.
        """
        options = GivenOptions(given, READ)
        group = options.text("group")
        value = ValueOptions.parse(options)
        events = options.flag("events", False)
        if events and value is not None:
            raise BadOption("valueFormat", value.format, "nothing with events: they have no body")
        all_of_them = EVENT_COLUMNS if events else COLUMNS if value is None else (*COLUMNS, *VALUE_COLUMNS)
        if streaming and ({"endingOffsets", "endingTimestamp"} & options.values.keys()):
            raise BadOption("endingOffsets", options.text("endingOffsets"), "nothing: a stream has no end")
        return cls(
            name_servers=options.name_servers(),
            topics=_topics(options, events),
            path=options.text("path"),
            starting=_offsets(options, "startingOffsets", LATEST if streaming else EARLIEST),
            ending=_offsets(options, "endingOffsets", LATEST),
            starting_timestamp=options.number_if_given("startingTimestamp"),
            ending_timestamp=options.number_if_given("endingTimestamp"),
            max_offsets_per_trigger=options.number_if_given("maxOffsetsPerTrigger", least=1),
            min_partitions=options.number("minPartitions", 1, least=1),
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            sub_expression=_expression(options),
            expression_type=options.choice("expressionType", ("TAG", "SQL92")),
            columns=_columns(options, all_of_them),
            push_filters=options.flag("pushFilters", False),
            reader=options.choice("reader", ("auto", "range", "pull")),
            chunk_bytes=options.number("chunkSize", 2 * MIB, least=1 << 16),
            retry_seconds=options.seconds("retryTimeout", 30.0),
            decompress=options.flag("decompress", True),
            max_body_size=options.number("maxBodySize", MAX_BODY, least=1),
            check_crc=options.flag("checkCrc", False),
            group=group,
            value=value,
        )


def _topics(options: GivenOptions, events: bool) -> Topics:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.text(name).strip()]
    if events and not given:
        return Topics(everything=True)
    if len(given) != 1:
        expected = f"one of subscribe, subscribePattern or assign; given: {', '.join(given) or 'none'}"
        raise BadOption("subscribe", options.text("subscribe"), expected)
    if given == ["subscribe"]:
        return Topics(names=options.names("subscribe"))
    text = options.text(given[0])
    if given == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise BadOption("subscribePattern", text, f"a regular expression ({error})") from None
        return Topics(pattern=text)
    try:
        data = orjson.loads(text)
        queues = sorted(
            MessageQueue(topic, broker, int(queue))
            for topic, brokers in data.items()
            for broker, numbers in brokers.items()
            for queue in numbers
        )
    except (ValueError, AttributeError, TypeError):
        raise BadOption("assign", text, 'JSON such as {"orders": {"broker-a": [0, 1]}}') from None
    return Topics(queues=tuple(queues))


def _offsets(options: GivenOptions, name: str, default: int) -> Offsets | int:
    def convert(text: str) -> Offsets | int:
        word = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
        return from_json(_json(text)) if word is None else word

    expected = 'earliest, latest, or JSON such as {"orders": {"broker-a": {"0": 100}}}'
    start: Offsets | int = default
    return options.converted(name, start, convert, expected)


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None


def _expression(options: GivenOptions) -> str:
    text = options.text("subExpression").strip()
    return "" if text == "*" else text


def _columns(options: GivenOptions, all_of_them: tuple[str, ...]) -> tuple[str, ...]:
    chosen = options.names("columns")
    known = {name.lower(): name for name in all_of_them}
    for name in chosen:
        if name.lower() not in known:
            raise BadOption("columns", options.text("columns"), f"names of {', '.join(all_of_them)}; {name!r} is none")
    columns = tuple(known[name.lower()] for name in chosen) or all_of_them
    if not options.flag("includeHeaders", True):
        columns = tuple(name for name in columns if name != "properties")
    return columns
