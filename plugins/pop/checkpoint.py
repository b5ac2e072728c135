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

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

MOST_MESSAGES: Final = 32
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
        data: dict[str, Any] = orjson.loads(body)
        start = int(data["so"])
        # Old versions wrote no differences: the messages lay side by side.
        differences = data.get("d") or range(int(data["n"]))
        return cls(
            group=data["c"],
            topic=data["t"],
            queue_id=int(data["q"]),
            start_offset=start,
            pop_time=int(data["pt"]),
            invisible_ms=int(data["it"]),
            offsets=[start + int(difference) for difference in differences],
            broker_name=data.get("bn") or "",
            acked=int(data.get("bm", 0)) & 0xFFFFFFFF,
        )


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
    data: dict[str, Any] = orjson.loads(body)
    offsets = data["aol"] if "aol" in data else [data["ao"]]
    key = (data["c"], data["t"], int(data["q"]), int(data["so"]), int(data["pt"]))
    return key, [int(offset) for offset in offsets]
