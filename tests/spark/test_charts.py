"""Charts: lines of tables as SVG."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

from verniermq.contrib.spark.charts import chart, few, lines_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


def rows(name: str, *values: float) -> list[dict[str, object]]:
    return [
        {"topic": name, "minute": NOON + timedelta(minutes=number), "messages": value}
        for number, value in enumerate(values)
    ]


def test_lines_are_those_of_a_column_the_highest_first() -> None:
    lines = lines_of([*rows("few", 1, 2), *rows("many", 10, 20)], "minute", "messages", "topic")

    assert list(lines) == ["many", "few"]
    assert [value for _, value in lines["many"]] == [10, 20]


def test_what_cannot_be_told_apart_is_one_line() -> None:
    many = [row for number in range(12) for row in rows(f"topic-{number}", 100 - number, 1)]

    lines = few(lines_of(many, "minute", "messages", "topic"))

    assert len(lines) == 9
    assert [value for _, value in lines["4 others"]] == [sum(100 - number for number in range(8, 12)), 4]


def test_a_chart_is_svg_whatever_the_names_are() -> None:
    drawn = ElementTree.fromstring(chart("<script>", {"a&b" * 20: [(NOON, 3.0), (NOON + timedelta(hours=1), 5.0)]}))

    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert "<script>" in texts
    assert {"0", "2", "8", "12:00", "13:00"} <= set(texts)
    assert len(str(texts[-1])) == 24
    (line,) = drawn.iter(f"{SVG}polyline")
    assert len(line.attrib["points"].split()) == 2


def test_one_point_is_a_dot_and_nothing_is_an_empty_chart() -> None:
    assert "<circle" in chart("one", {"a": [(NOON, 0.0)]})
    assert "polyline" not in chart("none", {})
