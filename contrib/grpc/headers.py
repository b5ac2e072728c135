"""The headers of calls, as HTTP/2 packs them (RFC 7541).

::

    1xxxxxxx               a field of the table, by its number
    01xxxxxx value         a new value for a name of the table, or a new name; both are kept in the table
    001xxxxx               the table becomes smaller
    0000xxxx, 0001xxxx     like the second, and not kept

A call has a dozen fields of which all but a few stand in the table already, so most of them are one byte here.
Tables of texts instead of bytes, and no object for a field, make this several times as quick as the decoder of the
package ``hpack``, which has the constants: those that everybody knows by number, and the code of texts.
"""

from __future__ import annotations

from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

Field = tuple[str, str, int]
"""Name, value, and what both count for in the table."""

TABLE_BYTES: Final = 4096
"""What a client may have us keep, as long as it is told nothing else."""
FIELD_BYTES: Final = 32
"""What a field counts for, beside its texts."""
MOST_BYTES: Final = 64 * 1024
"""Of the fields of one call, unpacked."""


class HeadersBroken(Exception):
    """What came are no headers; what follows cannot be read either."""


def _field(name: bytes, value: bytes) -> Field:
    return name.decode("latin-1"), value.decode("latin-1"), len(name) + len(value) + FIELD_BYTES


_KNOWN: Final[list[Field]] = [_field(name, value) for name, value in HeaderTable.STATIC_TABLE]


class HeaderDecoder:
    """The reading side of one connection."""

    __slots__ = ("_limit", "_size", "_table")

    def __init__(self) -> None:
        self._table: list[Field] = []
        """The newest last."""
        self._size = 0
        self._limit = TABLE_BYTES

    def decode(self, block: bytes) -> dict[str, str]:
        """The fields by their names; of several with one name the last.

        Raises:
            HeadersBroken: the block is no such thing, or too large.
        """
        try:
            return self._decode(block)
        except (IndexError, HPACKDecodingError) as error:
            raise HeadersBroken(f"headers cannot be read: {error}") from None

    def _decode(self, block: bytes) -> dict[str, str]:
        fields: dict[str, str] = {}
        at, end, total = 0, len(block), 0
        while at < end:
            byte = block[at]
            if byte & 0x80:
                number, at = (byte & 0x7F, at + 1) if byte != 0xFF else _integer(block, at, 0x7F)
                name, value, size = self._entry(number)
            elif byte & 0xE0 == 0x20:
                limit, at = _integer(block, at, 0x1F)
                if limit > TABLE_BYTES or fields:
                    raise HeadersBroken(f"a table of {limit} bytes; at most {TABLE_BYTES}, and before the fields")
                self._limit = limit
                self._shrink()
                continue
            else:
                number, at = _integer(block, at, 0x3F if byte & 0x40 else 0x0F)
                if number:
                    name, _, _ = self._entry(number)
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                size = len(name) + len(value) + FIELD_BYTES
                if byte & 0x40:
                    self._table.append((name, value, size))
                    self._size += size
                    if self._size > self._limit:
                        self._shrink()
            total += size
            if total > MOST_BYTES:
                raise HeadersBroken(f"headers of more than {MOST_BYTES} bytes")
            fields[name] = value
        return fields

    def _entry(self, number: int) -> Field:
        if number <= len(_KNOWN):
            if not number:
                raise HeadersBroken("no field has the number 0")
            return _KNOWN[number - 1]
        return self._table[len(_KNOWN) - number]  # 62 is the newest, which stands last

    def _shrink(self) -> None:
        """Forget the oldest fields."""
        gone = 0
        while self._size > self._limit:
            self._size -= self._table[gone][2]
            gone += 1
        del self._table[:gone]


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A number that begins in the low bits of a byte, and where the next thing stands."""
    number = block[at] & mask
    at += 1
    if number == mask:
        shift = 0
        while True:
            byte = block[at]
            at += 1
            number += (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise HeadersBroken("a number of more than 32 bits")
    return number, at


def _text(block: bytes, at: int) -> tuple[str, int]:
    is_coded = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    behind = at + size
    if behind > len(block):
        raise HeadersBroken("a text ends behind the headers")
    text = block[at:behind]
    return (decode_huffman(text) if is_coded else text).decode("latin-1"), behind
