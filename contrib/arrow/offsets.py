"""Offsets as users write them and as Spark keeps them: ``{topic: {broker: {queue: n}}}``, the end exclusive.

Pure arithmetic; nobody is asked anything here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from verniermq.kernel import MessageQueue

Offsets = dict[MessageQueue, int]

EARLIEST: Final = -2
LATEST: Final = -1
"""In the place of a number; as for Kafka's users."""

WORTH_A_TASK: Final = 20_000
"""Messages. To begin and end a task takes Spark and its Python as long as reading about so many."""


@attrs.frozen
class Span:
    """A part of one queue: offsets from ``begin`` to just before ``end``."""

    queue: MessageQueue
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


def as_json(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        found.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return found


def from_json(data: Any) -> Offsets:
    """
    Raises:
        ValueError: it is something else.
    """
    try:
        return {
            MessageQueue(topic, broker, int(queue)): _number(offset)
            for topic, brokers in data.items()
            for broker, queues in brokers.items()
            for queue, offset in queues.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(f"expected {{topic: {{broker: {{queue: offset}}}}}}, found {data!r}") from error


def _number(offset: Any) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST:
        raise ValueError(f"{offset!r} is no offset; expected a number, -2 for the earliest or -1 for the latest")
    return offset


def limited(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], most: int) -> Offsets:
    """An end with at most ``most`` messages from ``start`` on; each queue gets its share by what waits in it.

    At least one message comes, if any waits, so that a limit never stops a stream.
    """
    waiting = {queue: max(0, stop - start.get(queue, stop)) for queue, stop in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    shares = {queue: count * most // total for queue, count in waiting.items()}
    left = most - sum(shares.values())
    # What the division dropped goes to the queues that it cut most.
    for queue in sorted(waiting, key=lambda queue: (-(waiting[queue] * most % total), queue)):
        if left and shares[queue] < waiting[queue]:
            shares[queue] += 1
            left -= 1
    return {queue: stop - waiting[queue] + shares[queue] for queue, stop in end.items()}


def split(spans: Sequence[Span], minimum: int) -> list[Span]:
    """At least ``minimum`` spans, if there are so many messages; the longest are cut most."""
    filled = [span for span in spans if len(span) > 0]
    total = sum(len(span) for span in filled)
    if len(filled) >= minimum or not total:
        return filled
    pieces: list[Span] = []
    for span in filled:
        count = max(1, min(len(span), -(-len(span) * minimum // total)))
        edges = [span.begin + len(span) * number // count for number in range(count + 1)]
        pieces += [Span(span.queue, edges[number], edges[number + 1]) for number in range(count)]
    return pieces


def packed(spans: Sequence[Span], minimum: int, worth: int = WORTH_A_TASK) -> list[list[Span]]:
    """The spans of each task: short ones share one, but ``minimum`` tasks stay, if there are so many spans."""
    tasks: list[list[Span]] = []
    messages = 0
    for number, span in enumerate(spans):
        others = len(spans) - number - 1
        if tasks and messages < worth and len(tasks) + others >= minimum:
            tasks[-1].append(span)
            messages += len(span)
        else:
            tasks.append([span])
            messages = len(span)
    return tasks
