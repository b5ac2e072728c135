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
from functools import lru_cache
from itertools import islice
from typing import Final

import attrs

from verniermq.kernel import Histogram, Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LINES_PER_STEP: Final = 256
HISTOGRAMS_PER_STEP: Final = 16


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
    """With a number in braces where a figure's own value comes."""

    @classmethod
    def of(cls, own: tuple[str, ...], constant: Mapping[str, str]) -> Labels:
        parts: list[tuple[str, int | None]] = [(name, None) for name in constant if name not in own]
        parts += [(name, position) for position, name in enumerate(own)]
        parts.sort()
        texts = []
        for name, position in parts:
            fixed = "" if position is not None else escaped(constant[name]).replace("{", "{{").replace("}", "}}")
            texts.append(f'{name}="{fixed}"' if position is None else f'{name}="{{{position}}}"')
        return cls(",".join(texts))

    def text(self, values: tuple[str, ...]) -> str:
        """What stands between the braces."""
        joined = "".join(values)
        if "\\" in joined or '"' in joined or "\n" in joined:
            values = tuple(map(escaped, values))
        return self.template.format(*values)


class Texts(dict[tuple[str, ...], str]):
    """The values of labels → their text, for all families that have the same labels.

    They are kept from scrape to scrape: ten thousands of new objects each time would have the garbage collector look
    through all that is new, in one go.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self.wanted = 0
        """How many lines took their text from here since :meth:`outgrown` was asked."""

    def __missing__(self, values: tuple[str, ...]) -> str:
        text = self[values] = self._labels.text(values)
        return text

    def outgrown(self) -> bool:
        """Whether there are more than were wanted: some are of what is gone."""
        wanted, self.wanted = self.wanted, 0
        return len(self) > wanted > 0

    def emptied(self) -> Iterator[None]:
        """Let go of all of them, in steps."""
        while self:
            for _ in range(min(len(self), LINES_PER_STEP)):
                self.popitem()
            yield


def family(metric: Metric, texts: Texts, most: int) -> Iterator[str | None]:
    """The text of one family in pieces, with ``None`` between them where nothing is ready yet.

    At most ``most`` figures are written; how many there were beyond is said in a comment.
    """
    yield f"# HELP {metric.name} {metric.help.replace(chr(92), chr(92) * 2)}\n# TYPE {metric.name} {metric.kind}\n"
    name, count = metric.name, 0
    samples = iter(metric.samples())
    step = HISTOGRAMS_PER_STEP if metric.kind == "histogram" else LINES_PER_STEP
    while count < most:
        # No pair is kept beyond its line: there may be a hundred thousand of them.
        batch = islice(samples, min(step, most - count))
        if metric.kind == "histogram":
            lines = [_histogram(name, texts[values], value) for values, value in batch]  # type: ignore[arg-type]
        else:
            lines = [f"{name}{{{texts[values]}}} {float(value)!r}\n" for values, value in batch]  # type: ignore[arg-type]
        if not lines:
            return
        count += len(lines)
        texts.wanted += len(lines)
        yield "".join(lines)
    left_out = 0
    while more := sum(1 for _ in islice(samples, step)):
        left_out += more
        yield None
    if left_out:
        yield f"# {left_out} figures of {metric.name} are left out: [plugins.metrics] max_series = {most}\n"


@lru_cache(maxsize=64)
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(number, bounds), "+Inf")


def _histogram(name: str, text: str, value: Histogram) -> str:
    total, lines, comma = 0, [], "," if text else ""
    for bound, count in zip(_bounds(value.bounds), value.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{text}{comma}le="{bound}"}} {total}\n')
    lines.append(f"{name}_count{{{text}}} {total}\n{name}_sum{{{text}}} {number(value.sum)}\n")
    return "".join(lines)
