"""What the revive log keeps: which messages were popped together, and which of them were acknowledged.

Both are messages in ``rmq_sys_REVIVE_LOG_<cluster>``, their bodies JSON with RocketMQ's short names::

    tag ck    {"so":100,"pt":1700000000000,"it":60000,"bm":0,"n":2,"q":1,"t":"T","c":"CG","ro":0,"d":[0,2],"bn":"b"}
              popped at pt, invisible for it: the offsets so + d of queue q; bit i of bm: the i-th is acknowledged
    tag ack   {"ao":102,"so":100,"c":"CG","t":"T","q":1,"pt":1700000000000,"bn":"b"}
    tag bAck  {"aol":[100,102],"so":100,…}                                     the same for several at once

(RocketMQ: ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import orjson

from verniermq.kernel import parse_json
from verniermq.protocol.pop import MOST_POPPED

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

MOST_MESSAGES: Final = MOST_POPPED
"""In one pop, since a checkpoint keeps a bit for each in a 32-bit number."""

Key = tuple[str, str, int, int, int]
"""What names a checkpoint: group, topic, queue, start offset, time of the pop."""


@attrs.define(eq=False)
class CheckPoint:
    """Messages of one queue that one pop delivered."""

    group: str
    topic: str
    """The one they lie in: a retry topic for those popped from there."""
    queue_id: int
    start_offset: int
    pop_time: int
    invisible_ms: int
    offsets: list[int]
    broker_name: str
    acked: int = 0
    """Bit i: the i-th message is acknowledged, or back in the retry topic."""
    revive_queue: int = 0
    revive_offset: int = 0
    """Where in the revive log it lies."""
    is_done: bool = False

    @property
    def key(self) -> Key:
        return self.group, self.topic, self.queue_id, self.start_offset, self.pop_time

    @property
    def revive_time(self) -> int:
        return self.pop_time + self.invisible_ms

    @property
    def open_offsets(self) -> list[int]:
        return [offset for index, offset in enumerate(self.offsets) if not self.acked >> index & 1]

    def acknowledge(self, offset: int) -> bool:
        """Note an acknowledgement; false when it is none of ours or known already."""
        try:
            bit = 1 << self.offsets.index(offset)
        except ValueError:
            return False
        if self.acked & bit:
            return False
        self.acked |= bit
        return True

    def encode(self) -> bytes:
        bits = self.acked - (1 << 32) if self.acked >= 1 << 31 else self.acked  # a signed number for Java
        return orjson.dumps(
            {
                "so": self.start_offset,
                "pt": self.pop_time,
                "it": self.invisible_ms,
                "bm": bits,
                "n": len(self.offsets),
                "q": self.queue_id,
                "t": self.topic,
                "c": self.group,
                "ro": 0,
                "d": [offset - self.start_offset for offset in self.offsets],
                "bn": self.broker_name,
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> CheckPoint:
        """
        Raises:
            ValueError, KeyError, TypeError: the body is no checkpoint.
        """
        data: dict[str, Any] = parse_json(body)
        start = _whole(data["so"])
        # Old versions wrote no differences: the messages lay side by side.
        differences = data.get("d") or range(_whole(data["n"]))
        if len(differences) > MOST_MESSAGES:
            raise ValueError(f"it is of {len(differences)} messages; one pop has {MOST_MESSAGES} at most")
        return cls(
            group=_text(data["c"]),
            topic=_text(data["t"]),
            queue_id=_whole(data["q"]),
            start_offset=start,
            pop_time=_whole(data["pt"]),
            invisible_ms=_whole(data["it"]),
            offsets=[start + _whole(difference) for difference in differences],
            broker_name=_text(data.get("bn") or ""),
            acked=_whole(data.get("bm", 0)) & 0xFFFFFFFF,
        )


def _whole(value: Any) -> int:
    # A number past 64 bits comes as a fraction, and could not be written again.
    if type(value) is not int:
        raise TypeError(f"{value!r:.80} is no whole number of 64 bits")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r:.80} is no text")
    return value


def encode_acks(checkpoint: CheckPoint, offsets: Sequence[int]) -> tuple[str, bytes]:
    """The tag and the body of a message that acknowledges some of a checkpoint's messages."""
    common = {
        "so": checkpoint.start_offset,
        "c": checkpoint.group,
        "t": checkpoint.topic,
        "q": checkpoint.queue_id,
        "pt": checkpoint.pop_time,
        "bn": checkpoint.broker_name,
    }
    if len(offsets) == 1:
        return ACK_TAG, orjson.dumps({"ao": offsets[0], **common})
    return BATCH_ACK_TAG, orjson.dumps({"ao": 0, "aol": list(offsets), **common})


def decode_acks(body: bytes) -> tuple[Key, list[int]]:
    """Which checkpoint an acknowledgement is about, and which offsets.

    Raises:
        ValueError, KeyError, TypeError: the body is no acknowledgement.
    """
    data: dict[str, Any] = parse_json(body)
    offsets = data["aol"] if "aol" in data else [data["ao"]]
    key = (_text(data["c"]), _text(data["t"]), _whole(data["q"]), _whole(data["so"]), _whole(data["pt"]))
    return key, [_whole(offset) for offset in offsets]
