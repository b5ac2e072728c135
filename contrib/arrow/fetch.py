"""The records of a span of one queue as Arrow batches, however often the broker goes away meanwhile.

While one answer is decoded the next is on its way: the broker reads while we compute. A broker that goes away is
asked again for what is missing, for as long as the option ``retryTimeout`` says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import attrs

from verniermq.contrib.arrow.cluster import FIRST_PAUSE, LONGEST_PAUSE, Cluster, Refused, expect
from verniermq.contrib.arrow.errors import BrokerGone, DataLost, TableError
from verniermq.contrib.arrow.offsets import Span
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.requests import ReadQueueRange
from verniermq.contrib.arrow.schema import EVENT_COLUMNS
from verniermq.contrib.arrow.wire import Wire
from verniermq.kernel import Command, RemotingError, RequestCode, ResponseCode
from verniermq.kernel.requests import PullMessage

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

PULL_GROUP: Final = "spark"
PULL_MESSAGES: Final = 1024


@attrs.frozen
class Chunk:
    """What one answer brought: records, perhaps with their consume-queue entries, and where to go on."""

    body: bytes
    record_bytes: int | None
    next_offset: int
    heads: bool = False
    """Whether only the beginning of each record is there."""


class PluginNeeded(TableError):
    def __init__(self, address: str) -> None:
        super().__init__(
            f'the broker at {address} does not serve ranges: add "spark" to enable in [plugins] of its broker.toml, '
            "or set the option reader=pull, which is many times slower"
        )


class Fetcher:
    """Reads spans over the network; one per task."""

    def __init__(self, options: ReadOptions, cluster: Cluster | None = None) -> None:
        self._options = options
        self._cluster = cluster or Cluster(options.name_servers, options.retry_seconds)
        self._pull = options.reader == "pull"

    def close(self) -> None:
        self._cluster.close()

    def batches(self, span: Span, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """The messages of a span that pass the filter.

        Raises:
            DataLost: some are not there any more, and that matters.
            BrokerGone: the broker did not come back in time.
        """
        from verniermq.contrib.arrow.decode import decode_columns, decode_heads
        from verniermq.contrib.arrow.tags import TagTest

        test = TagTest.of(self._options)
        wanted = test.with_tags(columns)
        heads = heads_will_do(self._options, columns)
        for chunk in self.chunks(span, heads):
            if chunk.record_bytes == 0 or not chunk.body:
                continue
            if chunk.heads and chunk.record_bytes is not None:
                yield decode_heads(chunk.body, columns, span.queue.topic, chunk.record_bytes)
                continue
            batch = decode_columns(
                chunk.body,
                wanted,
                record_bytes=chunk.record_bytes,
                check_crc=self._options.check_crc,
                decompress=self._options.decompress,
                max_body_size=self._options.max_body_size,
            )
            batch = test.only(batch, columns)
            if batch.num_rows:
                yield batch

    def chunks(self, span: Span, heads: bool = False) -> Iterator[Chunk]:
        """The answers for a span, in order, without a gap and without a repeat.

        Args:
            heads: the beginning of each record will do, if the broker has the plugin
        """
        position = span.begin
        deadline, pause = time.monotonic() + self._options.retry_seconds, FIRST_PAUSE
        while position < span.end:
            try:
                for chunk in self._conversation(attrs.evolve(span, begin=position), heads):
                    if chunk.next_offset < position:
                        raise DataLost(span.queue, position, span.end, "the broker went back")
                    position = chunk.next_offset
                    yield chunk
                    deadline, pause = time.monotonic() + self._options.retry_seconds, FIRST_PAUSE
            except RemotingError as error:
                if time.monotonic() + pause > deadline:
                    what = f"reading {span.queue}, offsets {span.begin} to {span.end}, stopped at {position}"
                    raise BrokerGone(what, self._options.retry_seconds, error) from error
                logger.warning("reading %s stopped at %d: %s; again in %.1f s", span.queue, position, error, pause)
                self._cluster.close()
                self._cluster.forget()
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    def _conversation(self, span: Span, heads: bool) -> Iterator[Chunk]:
        """Answers on one connection, as long as it lasts."""
        address = self._cluster.address(span.queue)
        if not self._pull:
            try:
                yield from self._ranges(self._cluster.wire(address), span, heads)
                return
            except Refused as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
            if self._options.reader == "range":
                raise PluginNeeded(address)
            logger.warning(
                "the broker at %s lacks the plugin 'spark': reading with ordinary pulls, many times slower", address
            )
            self._pull = True
        yield from self._pulls(self._cluster.wire(address), span)

    # --- with the broker's plugin ----------------------------------------------------------

    def _ranges(self, wire: Wire, span: Span, heads: bool) -> Iterator[Chunk]:
        code = RequestCode.READ_QUEUE_RANGE
        position = span.begin
        wire.send(self._range_request(span, position, heads))
        while True:
            answer = wire.receive()
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                position = self._moved(span, position, answer)
                chunk = Chunk(b"", 0, position)
            else:
                expect(answer, code, wire.address)
                chunk = Chunk(answer.body, int(answer.ext["recordBytes"]), int(answer.ext["nextBeginOffset"]), heads)
                position = chunk.next_offset
            if position < span.end:
                wire.send(self._range_request(span, position, heads))
            yield chunk
            if position >= span.end:
                return

    def _range_request(self, span: Span, position: int, heads: bool) -> Command:
        expression = self._options.sub_expression
        return ReadQueueRange(
            topic=span.queue.topic,
            queue_id=span.queue.queue_id,
            begin=position,
            end=span.end,
            max_bytes=self._options.chunk_bytes,
            expression=expression or None,
            expression_type=self._options.expression_type if expression else None,
            heads=heads,
        ).command()

    def _moved(self, span: Span, position: int, answer: Command) -> int:
        """The offset is not there: go on with the first that is, if messages may be missing. Never go back."""
        low, high = int(answer.ext["minOffset"]), int(answer.ext["maxOffset"])
        if position >= high:
            why = f"the queue ends at {high}: the broker lost its newest messages, or the topic was made anew"
            following = span.end
        else:
            why = f"the queue begins at {low} now: the broker deleted old files"
            following = min(low, span.end)
        if self._options.fail_on_data_loss:
            raise DataLost(span.queue, position, min(following, span.end), why)
        logger.warning("offsets %d to %d of %s are skipped: %s", position, following, span.queue, why)
        return following

    # --- with any broker -------------------------------------------------------------------

    def _pulls(self, wire: Wire, span: Span) -> Iterator[Chunk]:
        code = RequestCode.PULL_MESSAGE
        position = span.begin
        while position < span.end:
            pull = PullMessage(
                group=self._options.group or PULL_GROUP,
                topic=span.queue.topic,
                queue_id=span.queue.queue_id,
                offset=position,
                max_messages=min(PULL_MESSAGES, span.end - position),
                sys_flag=PullMessage.SUBSCRIPTION_INCLUDED,
                expression=self._options.sub_expression or "*",
                expression_type=self._options.expression_type,
            )
            answer = wire.ask(code, pull.ext())
            following = int(answer.ext.get("nextBeginOffset", position))
            if answer.code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND):
                position = self._moved(span, position, answer)
                yield Chunk(b"", 0, position)
            elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                position = min(following, span.end)
                yield Chunk(b"", 0, position)
            else:
                expect(answer, code, wire.address)
                body = answer.body if following <= span.end else _before(answer.body, span.end)
                position = min(following, span.end)
                yield Chunk(body, None, position)


def heads_will_do(options: ReadOptions, columns: tuple[str, ...]) -> bool:
    """Whether columns need no more of a record than its head. A filter or a checksum needs the rest."""
    return not options.sub_expression and not options.check_crc and set(columns) <= set(EVENT_COLUMNS)


def _before(body: bytes, end: int) -> bytes:
    """The records of a pull's body that lie before an offset: with a filter, a pull may look further than asked."""
    position = 0
    while position < len(body) and int.from_bytes(body[position + 20 : position + 28], "big") < end:
        position += int.from_bytes(body[position : position + 4], "big")
    return body[:position]
