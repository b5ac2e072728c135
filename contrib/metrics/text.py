"""The text that Prometheus reads: each family with its help and type, then a line for each of its figures.

::

    # HELP rocketmq_topic_number Topics of this broker.
    # TYPE rocketmq_topic_number gauge
    rocketmq_topic_number{cluster="c",node_id="broker-a",node_type="broker"} 18.0

Written by hand, since there may be a hundred thousand lines, and as a generator, since the loop has others to serve:
it yields after each piece of work, so that whoever drives it can pause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from verniermq.kernel import Histogram, Metric, Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LINES_PER_PIECE: Final = 200


def escaped(value: str) -> str:
    """A label's value between its quotes."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def number(value: float) -> str:
    return repr(float(value))


@attrs.frozen
class Labels:
    """The labels of one family: some the same for all figures, some with each; written in the order of their names."""

    template: str
    order: tuple[int, ...]
    """Which of a figure's own values comes where."""

    @classmethod
    def of(cls, own: tuple[str, ...], constant: Mapping[str, str]) -> Labels:
        parts: list[tuple[str, int | None]] = [(name, None) for name in constant if name not in own]
        parts += [(name, position) for position, name in enumerate(own)]
        parts.sort()
        texts = []
        for name, position in parts:
            value = "%s" if position is not None else escaped(constant[name]).replace("%", "%%")
            texts.append(f'{name}="{value}"')
        return cls(",".join(texts), tuple(position for _, position in parts if position is not None))

    def text(self, values: tuple[str, ...]) -> str:
        """What stands between the braces."""
        return self.template % tuple([escaped(values[position]) for position in self.order])


def family(metric: Metric, constant: Mapping[str, str], most: int) -> Iterator[str | None]:
    """The text of one family in pieces, with ``None`` between them where nothing is ready yet.

    At most ``most`` figures are written; how many there were beyond is what the generator returns.
    """
    yield f"# HELP {metric.name} {metric.help.replace(chr(92), chr(92) * 2)}\n# TYPE {metric.name} {metric.kind}\n"
    labels, lines, count = Labels.of(metric.labels, constant), [], 0
    for sample in metric.samples():
        count += 1
        if count <= most:
            lines.append(_lines(metric.name, labels, sample))
        if len(lines) >= LINES_PER_PIECE:
            yield "".join(lines)
            lines = []
        else:
            yield None
    if lines:
        yield "".join(lines)
    if count > most:
        yield f"# {count - most} figures of {metric.name} are left out: [plugins.metrics] max_series = {most}\n"


def _lines(name: str, labels: Labels, sample: Sample) -> str:
    values, value = sample
    text = labels.text(values)
    if not isinstance(value, Histogram):
        return f"{name}{{{text}}} {value!r}\n" if type(value) is float else f"{name}{{{text}}} {number(value)}\n"
    total, lines, comma = 0, [], "," if text else ""
    for bound, count in zip((*map(number, value.bounds), "+Inf"), value.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{text}{comma}le="{bound}"}} {total}\n')
    lines.append(f"{name}_count{{{text}}} {total}\n{name}_sum{{{text}}} {number(value.sum)}\n")
    return "".join(lines)
