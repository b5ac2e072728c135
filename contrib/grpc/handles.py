"""What clients hold in their hands: receipts of received messages, and ids of transactions.

A receipt is the handle of the pop, nine words with the commit-log offset as the last, and a seal::

    0 1794875030133 15000 0 0 broker-a 2 0 7135 3f9c6a0d1be24577
                                                └ HMAC-SHA256 over group, topic and the words, its first 8 bytes

Without the seal anybody could write one down and acknowledge what another group has in hand. The key of the seal is
kept with the store, so that receipts outlive a restart.

The id of a transaction names its half message, so that it can be ended after a restart too: broker, commit-log offset
and offset in the half queue. Whether the caller may end it is found out from the half message itself.
"""

from __future__ import annotations

import hmac
from typing import Final

import attrs

from verniermq.client.receipt import Receipt
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.status import CallFailed

SEAL_BYTES: Final = 8
TRANSACTION_MARK: Final = "half"


@attrs.frozen
class Handle:
    """The receipt of one delivery."""

    receipt: Receipt
    log_offset: int

    @property
    def words(self) -> str:
        return f"{self.receipt} {self.log_offset}"

    @property
    def visible_at(self) -> int:
        """When the message comes again, in ms."""
        return self.receipt.pop_time + self.receipt.invisible_ms


@attrs.frozen
class Sealer:
    """Writes receipts for clients and reads them back."""

    key: bytes

    def write(self, handle: Handle, group: str, topic: str) -> str:
        return f"{handle.words} {self._seal(handle.words, group, topic)}"

    def read(self, text: str, group: str, topic: str, now_ms: int) -> Handle:
        """
        Raises:
            CallFailed: it is none of ours, of another group or topic, or its time is over.
        """
        words, _, seal = text.rpartition(" ")
        if not words or not hmac.compare_digest(seal.encode(), self._seal(words, group, topic).encode()):
            what = f"{text[:100]!r} is no receipt of a message of topic {topic!r} that group {group!r} received"
            raise CallFailed(Code.INVALID_RECEIPT_HANDLE, what)
        receipt, _, log_offset = words.rpartition(" ")
        handle = Handle(Receipt.parse(receipt), int(log_offset))
        if handle.visible_at <= now_ms:
            late = now_ms - handle.visible_at
            what = f"the receipt's invisible time ended {late} ms ago; the message comes again, with another receipt"
            raise CallFailed(Code.INVALID_RECEIPT_HANDLE, what)
        return handle

    def _seal(self, words: str, group: str, topic: str) -> str:
        content = "\0".join((group, topic, words)).encode("utf-8", "replace")
        return hmac.digest(self.key, content, "sha256")[:SEAL_BYTES].hex()


@attrs.frozen
class TransactionId:
    broker_name: str
    log_offset: int
    half_offset: int

    def __str__(self) -> str:
        return f"{TRANSACTION_MARK} {self.log_offset} {self.half_offset} {self.broker_name}"

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        """
        Raises:
            CallFailed: it is none.
        """
        mark, *numbers_and_name = text.split(" ", 3)
        try:
            log_offset, half_offset, broker_name = numbers_and_name
            if mark == TRANSACTION_MARK:
                return cls(broker_name, _offset(log_offset), _offset(half_offset))
        except ValueError:
            pass
        raise CallFailed(Code.INVALID_TRANSACTION_ID, f"{text[:100]!r} is no id of a transaction")


def _offset(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ValueError(text)
    return int(text)
