"""How long requests take, from the beginning of their handler to its answer, by code and outcome.

An interceptor before each handler costs a third of what a hook around every request would, and timing costs more than
the interceptor: so the more requests of a kind came, the fewer are timed, from each to one in ``SHARE``, and one counts
for all up to the next. What is refused or fails counts by itself. A pull that waits for a message is left out: how long
it waits says nothing of the broker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from time import perf_counter_ns
from typing import Any, Final

from verniermq.kernel import (
    Answer,
    Command,
    Connection,
    Context,
    Handler,
    Histogram,
    RequestCode,
    RequestRefused,
    ResponseCode,
    Sample,
    Withheld,
    Work,
    is_system_topic,
)

LATENCIES_MS: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
FINE_SECONDS: Final = (
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.003, 0.005, 0.007, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0,
)  # fmt: skip
"""Apache's ranges begin at 1 ms, where all of these requests are; so these are finer, and end where those end too."""
CREATE_MS: Final = (10.0, 100.0, 1000.0, 3000.0, 5000.0)
SHARE: Final = 1024
EXACT_TO: Final = 64
"""One request counts for so many at most: of all that came before, one in 64. So counts are ahead by 2 % at most."""
FAILED: Final = -1
"""In the place of the code of an answer."""

Interceptor = Callable[[Handler, Command, Connection], Answer | Work]


class Requests:
    def __init__(self) -> None:
        self.taken: dict[tuple[int, int, bool], Histogram] = {}
        """By code of the request, code of the answer, and whether it was one-way; in seconds."""
        self.topics_created: dict[tuple[str, str], Histogram] = {}
        """By outcome and whether it is a system topic; in milliseconds."""
        self.groups_created: dict[tuple[str], Histogram] = {}

    def watch(self, broker: Context) -> None:
        """From now on, until the broker ends."""
        broker.intercept({code: self._timed(code) for code in map(int, RequestCode)}, self._served_together)

    def _served_together(self, code: int, oneway: bool, count: int, elapsed_ns: int) -> None:
        """So many sends took so long; each counts with its share."""
        key = (code, 0, oneway)  # SUCCESS
        histogram = self.taken.get(key)
        if histogram is None:
            histogram = self.taken[key] = Histogram(FINE_SECONDS)
        histogram.observe(elapsed_ns / 1e9 / count, count)

    def _timed(self, code: int) -> Interceptor:
        by_answer: dict[int, Histogram] = {}
        creates = code in (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
        seen = untimed = 0

        def ended(request: Command, outcome: int, started: int, times: int = 1) -> None:
            seconds = (perf_counter_ns() - started) / 1e9
            histogram = by_answer.get(outcome)
            if histogram is None or request.is_oneway:
                key = (code, outcome, request.is_oneway)
                histogram = self.taken.setdefault(key, Histogram(FINE_SECONDS))
                if not request.is_oneway:
                    by_answer[outcome] = histogram
            histogram.observe(seconds, times)
            if creates:
                self._created(code, request, outcome, seconds * 1000)

        def interceptor(handler: Handler, request: Command, connection: Connection) -> Answer | Work:
            nonlocal seen, untimed
            if untimed:
                untimed -= 1
                try:
                    return handler(request, connection)
                except RequestRefused as refused:
                    ended(request, refused.code, perf_counter_ns())
                    raise
                except Exception:
                    ended(request, FAILED, perf_counter_ns())
                    raise
            times = 1 if creates else min(SHARE, 1 + seen // EXACT_TO)
            seen += times
            untimed = times - 1
            started = perf_counter_ns()
            try:
                answer = handler(request, connection)
            except RequestRefused as refused:
                ended(request, refused.code, started)
                raise
            except Exception:
                ended(request, FAILED, started)
                raise
            if isinstance(answer, Command):
                ended(request, answer.code, started, times)
            elif isinstance(answer, Withheld):
                answer.then_tell(lambda done, error: held_ended(request, done, error, started, times))
            elif inspect.iscoroutine(answer):
                return finish(request, answer, started, times)
            return answer

        def held_ended(
            request: Command, answer: Command | None, error: BaseException | None, started: int, times: int
        ) -> None:
            if answer is not None:
                ended(request, answer.code, started, times)
            elif isinstance(error, Exception):
                ended(request, error.code if isinstance(error, RequestRefused) else FAILED, started)

        async def finish(request: Command, work: Coroutine[Any, Any, Answer], started: int, times: int) -> Answer:
            try:
                answer = await work
            except RequestRefused as refused:
                ended(request, refused.code, started)
                raise
            except Exception:
                ended(request, FAILED, started)
                raise
            if answer is not None:
                ended(request, answer.code, started, times)
            return answer

        return interceptor

    def _created(self, code: int, request: Command, outcome: int, milliseconds: float) -> None:
        status = "success" if outcome == ResponseCode.SUCCESS else "failure"
        if code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            system = "true" if is_system_topic(request.ext.get("topic", "")) else "false"
            self.topics_created.setdefault((status, system), Histogram(CREATE_MS)).observe(milliseconds)
        else:
            self.groups_created.setdefault((status,), Histogram(CREATE_MS)).observe(milliseconds)

    # --- what is shown ---------------------------------------------------------------------

    def in_seconds(self) -> Iterator[Sample]:
        for (code, outcome, _), histogram in list(self.taken.items()):
            yield (request_label(code), response_label(outcome)), histogram

    def as_apache(self) -> Iterator[Sample]:
        """In milliseconds and Apache's ranges, each of which ends where one of ours does."""
        for (code, outcome, oneway), fine in list(self.taken.items()):
            result = "oneway" if oneway else "process_request_failed" if outcome == FAILED else "success"
            values = ("false", "remoting", request_label(code), response_label(outcome), result)
            yield values, _coarse(fine)


def _coarse(fine: Histogram) -> Histogram:
    coarse = Histogram(LATENCIES_MS)
    for bound, count in zip((*fine.bounds, 4.0), fine.counts, strict=True):
        coarse.observe(bound * 1000, count)
    coarse.sum = fine.sum * 1000
    return coarse


def request_label(code: int) -> str:
    try:
        return RequestCode(code).name.lower()
    except ValueError:
        return str(code)


def response_label(code: int) -> str:
    if code == FAILED:
        return ""
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)
