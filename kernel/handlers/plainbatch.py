"""The messages of a plain batch, in columns: no object for each, and what is the same for many worked out once.

The body of a batch is one message behind the other::

    size i4 | 0 i4 | 0 i4 | flag i4 | length i4, body | length i2, properties

The unique key and the keys of each message differ and are cut out of its properties; what is left is the same for
nearly all of them, so that its tags code, and whether a plugin wants to see such a message, is looked up by the bytes.

A batch is plain if it has nothing that ``SendHandler`` would have to add, change, refuse or ask plugins about. For any
other :func:`split` has no answer, and the batch is read message by message.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Final

from verniermq.kernel.commitlog.integrity import SECTOR
from verniermq.kernel.message import LONGEST_TAG, java_hash, parse_properties
from verniermq.kernel.names import Property

MOST_MESSAGES: Final = 1024
"""More than these are read in steps, so that others have their turn between them."""

KEPT: Final = 4096
"""Texts that are remembered. One has fewer than 512 bytes."""

_CUT_OUT: Final = frozenset({Property.UNIQUE_KEY, Property.KEYS})
_UNIQUE: Final = Property.UNIQUE_KEY.encode() + b"\x01"
_END: Final = b"\x02"
_KEYS: Final = Property.KEYS.encode() + b"\x01"
_unpack_head: Final = Struct(">iqii").unpack_from

Columns = tuple[list[bytes], list[int], list[bytes], list[int], list[bytes], list[bytes], list[bytes]]
"""Bodies, flags, properties with their length, tags codes, unique keys, other keys, rests, as a run has them."""


class PlainTexts:
    """What is known of properties without unique key and keys, by their bytes."""

    def __init__(self, concerned: Callable[[], frozenset[str]], not_plain: frozenset[str] = frozenset()) -> None:
        self._concerned = concerned
        self._not_plain = _CUT_OUT | not_plain
        self._asked: frozenset[str] = frozenset()
        self._codes: dict[bytes, int | None] = {}
        self._usable = True

    def known(self) -> dict[bytes, int | None] | None:
        """Text → tags code, ``None`` if it is not plain; another table when plugins want to see other properties.

        ``None`` while a plugin wants to see what is cut out.
        """
        concerned = self._concerned()
        if concerned is not self._asked:
            self._asked = concerned
            self._codes = {}
            self._usable = concerned.isdisjoint(_CUT_OUT)
        return self._codes if self._usable else None

    def look(self, text: bytes) -> int | None:
        """The same for one that is not known yet."""
        if len(self._codes) >= KEPT:
            self._codes.clear()
        code: int | None = None
        try:
            properties = parse_properties(text.decode())
        except UnicodeDecodeError:
            properties = {Property.UNIQUE_KEY: ""}
        # A second unique key or second keys would be the ones that count.
        if self._asked.isdisjoint(properties) and self._not_plain.isdisjoint(properties):
            tags = properties.get(Property.TAGS)
            code = 0 if not tags else java_hash(tags) if len(tags) <= LONGEST_TAG else None
        self._codes[text] = code
        return code


def split(data: bytes, texts: PlainTexts, most: int = MOST_MESSAGES) -> Columns | None:
    """The messages of a batch; ``None`` if it is not plain, or has more than ``most`` messages."""
    bodies: list[bytes] = []
    flags: list[int] = []
    tails: list[bytes] = []
    codes: list[int] = []
    uniques: list[bytes] = []
    keys: list[bytes] = []
    rests: list[bytes] = []
    last, before, after, words = 0, b"", b"", b""
    common, code = None, 0
    known, look = texts.known(), texts.look
    position, stop = 0, len(data)
    if known is None:
        return None
    try:
        while position < stop:
            size, _, flag, body_size = _unpack_head(data, position)
            body = position + 20
            body_end = body + body_size
            position += size
            tail = data[body_end:position]
            length = len(tail)
            if size != 20 + body_size + length or body_size < 0:
                return None
            head, _, rest = tail.partition(_UNIQUE)
            unique, found, rest = rest.partition(_END)
            # Nearly always the properties are those of the one before, but for the unique key.
            if head != before or rest != after or length != last or not found:
                if (
                    not 2 < length < SECTOR or tail[-1] != 2 or tail[0] << 8 | tail[1] != length - 2
                    or len(head) < 2 or (len(head) > 2 and head[-1] != 2)
                ):  # fmt: skip
                    return None
                before, after, last = head, rest, length
                text, words = head[2:] + rest, b""
                left, found, right = text.partition(_KEYS)
                if found and (not left or left[-1] == 2):
                    words, _, right = right.partition(_END)
                    if not words.isascii():
                        words.decode()
                    text = left + right
                if text != common:
                    known_code = known.get(text)
                    if known_code is None and (known_code := look(text)) is None:
                        return None
                    common, code = text, known_code
                    rests.append(text)
            if not unique or not unique.isascii():
                return None
            keys.append(words)
            bodies.append(data[body:body_end])
            flags.append(flag)
            tails.append(tail)
            codes.append(code)
            uniques.append(unique)
            if len(uniques) > most:
                return None
    except (error, ValueError, IndexError):
        return None
    return (bodies, flags, tails, codes, uniques, keys, rests) if bodies else None
