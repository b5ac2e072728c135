"""The answer to a send, written from a template: it is the same for every message but for five values.

Through the general encoder an answer would cost as much as everything else that a send needs. The template serves
JSON headers, the form that nearly all clients use, and whatever does not fit it goes the general way. Nearly nobody
looks at such an answer before the client does, so its fields are read from what was written, when somebody asks.
"""

from __future__ import annotations

import struct
from typing import Any, Final, final

from verniermq.kernel.codes import PROTOCOL_LANGUAGE, PROTOCOL_VERSION
from verniermq.kernel.remoting import Command
from verniermq.kernel.remoting.json_header import decode_json_header

REGION: Final = "DefaultRegion"

_TAIL: Final = f'"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'
_new = object.__new__
_pack_words = struct.Struct(">II").pack


@final
class WrittenAnswer(Command):
    """An answer without a body whose frame came first: it is made with nothing else."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """Called for a field that was not set: read all of them from the frame."""
        if name not in Command.__slots__:
            raise AttributeError(f"an answer has no {name!r}")
        frame = self.frame
        self.__init__(*decode_json_header(frame[8:]))  # which was not called so far
        self.frame = frame
        return getattr(self, name)


def send_answer(request: Command, message_id: str, queue_id: int, queue_offset: int, unique_key: str) -> Command:
    """The answer that a message is stored, ready to be written."""
    # A key of letters and digits stands in JSON as it is; any other is left to the encoder.
    if not request.binary and unique_key.isalnum() and unique_key.isascii():
        header = (
            f'{{"code":0,"extFields":{{"msgId":"{message_id}","queueId":"{queue_id}","queueOffset":"{queue_offset}",'
            f'"transactionId":"{unique_key}","MSG_REGION":"{REGION}","TRACE_ON":"true"}},"flag":1,'
            f'"language":"{PROTOCOL_LANGUAGE}","opaque":{request.opaque},{_TAIL}'
        ).encode()
        size = len(header)
        answer = _new(WrittenAnswer)
        answer.frame = _pack_words(size + 4, size) + header
        return answer
    return request.reply(
        0,
        {
            "msgId": message_id,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": unique_key,
            "MSG_REGION": REGION,
            "TRACE_ON": "true",
        },
    )


def batch_fields(message_ids: str, queue_id: int, queue_offset: int) -> dict[str, str]:
    """The fields of the answer to a batch; the ids have commas between them."""
    return {
        "msgId": message_ids,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "MSG_REGION": REGION,
        "TRACE_ON": "true",
    }
