"""Which keys a message is found by, and the number that the index keeps for each.

The text that counts is ``topic#key``; its number is the absolute value of Java's string hash (RocketMQ:
``IndexFile.indexKeyHashMethod``). Two million messages a minute may come through here, so the hash is worked out
in pieces, since ``hash(a + b) = hash(a) * 31^len(b) + hash(b)``: that of ``topic#`` once per topic, and that of
``topic#`` and all but a unique key's last four characters once for all messages that a client sent in one millisecond.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from functools import lru_cache
from operator import mul
from sys import byteorder
from typing import Final

from verniermq.kernel import Property, Run, SysFlag, compiled

_MASK: Final = 0xFFFFFFFF
_LONGEST: Final = 64


class _Powers(dict[int, tuple[int, ...]]):
    """By the length of a text: what each of its characters counts in its hash; worked out with the first such text."""

    def __missing__(self, length: int) -> tuple[int, ...]:
        self[length] = powers = tuple(pow(31, length - 1 - place, 1 << 32) for place in range(length))
        return powers


_POWERS: Final = _Powers()
_SHIFT: Final = [pow(31, n, 1 << 32) for n in range(_LONGEST + 1)]

ENTRIES: Final = compiled(__package__, "_entries")
"""The compiled way of runs, if there is one."""

_UNIQUE_KEYS: Final = (32, 56)
"""Characters of a unique key: address, process, class loader (20, or 44 with IPv6), milliseconds (8), counter (4)."""


@lru_cache(maxsize=4096)
def topic_hash(topic: str) -> int:
    """Java's hash of ``topic#``, which is how all texts of a topic begin; not negative, and remembered."""
    return _hash(f"{topic}#") & _MASK


@lru_cache(maxsize=4096)
def _before_counter(start: int, head: str) -> int:
    return (start * pow(31, len(head), 1 << 32) + _hash(head)) * _SHIFT[4] & _MASK


def key_hash(start: int, key: str) -> int:
    """The number that stands for a key in an index file, 0 to 2^31 - 1; ``start`` is its topic's hash."""
    length = len(key)
    if length > _LONGEST or not key.isascii():
        value = start * pow(31, len(key.encode("utf-16-le", "surrogatepass")) // 2, 1 << 32) + _hash(key)
    elif length in _UNIQUE_KEYS:
        a, b, c, d = key[-4:].encode()
        value = _before_counter(start, key[:-4]) + a * 29791 + b * 961 + c * 31 + d
    else:
        value = start * _SHIFT[length] + sum(map(mul, key.encode(), _POWERS[length]))
    value &= _MASK
    # The absolute value of a signed number; that of the smallest one would not fit, and counts as 0.
    return value if value < 1 << 31 else -value & 0x7FFFFFFF


def _hash(text: str) -> int:
    """Java's hash as a number that is not negative; only its lowest 32 bits count."""
    length = len(text)
    if length <= _LONGEST:
        try:
            # In Latin-1 a character is its own UTF-16 code unit.
            return sum(map(mul, text.encode("latin-1"), _POWERS[length]))
        except UnicodeEncodeError:
            pass
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    if byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = 31 * value + unit & _MASK
    return value


def keys_of(properties: Mapping[str, str], sys_flag: int = 0) -> list[str]:
    """What a message is found by: its unique key, then each word of its keys. A rolled-back one by nothing."""
    if sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
        return []
    unique = properties.get(Property.UNIQUE_KEY)
    keys = properties.get(Property.KEYS)
    words = keys.split(" ") if keys else []
    if "" in words:
        words = [word for word in words if word]
    return [unique, *words] if unique else words


def keys_of_run(run: Run) -> list[tuple[int, int, int]]:
    """The same for a run: the number of each key of each message, with commit-log offset and store time."""
    if ENTRIES is None:
        return _keys_of_run(run)
    topic = topic_hash(run.topic)
    found: list[tuple[int, int, int]] = ENTRIES.keys_of_run(
        topic, run.uniques, run.keys, run.offsets, run.store_timestamp, key_hash
    )
    return found


def _keys_of_run(run: Run) -> list[tuple[int, int, int]]:
    """The unique keys of a batch were made one after the other, and most differ from the one before in the last
    character."""
    start, time = topic_hash(run.topic), run.store_timestamp
    found: list[tuple[int, int, int]] = []
    head, base = b"", start * 31
    for unique, keys, offset in zip(run.uniques, run.keys, run.offsets, strict=True):
        if unique[:-1] != head:
            head = unique[:-1]
            base = (start * pow(31, len(head), 1 << 32) + _hash(head.decode())) * 31
        value = base + unique[-1] & _MASK
        found.append((value if value < 1 << 31 else -value & 0x7FFFFFFF, offset, time))
        if keys:
            found += [(key_hash(start, word), offset, time) for word in keys.decode().split(" ") if word]
    return found
