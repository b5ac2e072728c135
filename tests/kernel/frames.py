"""Sends as bytes, as Java's client writes them and as nobody would, from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence

import orjson

from verniermq.kernel.remoting import Command

BATCH = 320
SEND = 310
ANY = (30, 34, 999)
TIMELESS = (31, 34, 999)
"""Requests that are answered the same wherever a turn of the loop ends: 30 asks for the newest dispatched message."""
TOPICS = ("orders", "bills", "t.1")
RETRY = "%RETRY%g"
"""A topic that an odd send names now and then, and that its first one makes."""


def unique_key(number: int) -> str:
    return f"7F0000011267000018B4AAC247{number >> 16 & 0xFF:02X}{number & 0xFFFF:04X}"


def plain_properties(number: int, chance: random.Random) -> str:
    keys = f"KEYS\x01order-{number} k{number % 7}\x02" if chance.random() < 0.5 else ""
    tags = f"TAGS\x01{chance.choice(['paid', 'due', 'a'])}\x02" if chance.random() < 0.5 else ""
    wait = "WAIT\x01true\x02" if chance.random() < 0.8 else ""
    return f"{keys}{tags}UNIQ_KEY\x01{unique_key(number)}\x02{wait}"


def odd_properties(number: int, chance: random.Random) -> str:
    """What clients of other makers write, or what somebody tries."""
    unique = f"UNIQ_KEY\x01{unique_key(number)}\x02"
    return chance.choice(
        [
            "",
            unique[:-1],
            f"KEYS\x01a  b c\x02TAGS\x01\x02\x02x\x01y\x01z\x02{unique}",
            f"KEYS\x01中文 b\x02{unique}",
            f"TAGS\x01Größe\x02{unique}",
            f"TAGS\x01数\x02{unique}KEYS\x01\x02",
            f"{unique}{unique}",
            f"UNIQ_KEY\x01\x02{unique}",
            f"XUNIQ_KEY\x01x\x02{unique}",
            f"A\x01UNIQ_KEY\x01b\x02{unique}",
            f"KEYS\x01one\x02{unique}KEYS\x01two\x02",
            f"MYKEYS\x01one\x02{unique}",
            f"B\x01KEYS\x01one\x02{unique}",
            "UNIQ_KEY\x01has-a-dash\x02",
            "UNIQ_KEY\x01ünicode\x02TAGS\x01t\x02",
            "UNIQ_KEY\x01with\x01one\x02",
            f"MSG_REGION\x01elsewhere\x02{unique}",
            f"TRACE_ON\x01false\x02{unique}CLUSTER\x01other\x02",
            f'quote\x01say "hi" \\ / \t\n\x02{unique}',
            f"PAD\x01{'p' * chance.choice([200, 440, 450, 460, 470, 900])}\x02{unique}",
            f"PAD\x01{chr(0) * 600}\x02{unique}",
            f"DELAY\x010\x02{unique}",
            f"TRAN_MSG\x01false\x02{unique}",
            "no property at all",
        ]
    )


def element(body: bytes, text: bytes, flag: int = 0) -> bytes:
    """One message of a batch."""
    head = struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(text)) + text


def batch_body(number: int, chance: random.Random, *, odd: float = 0.0, most: int = 40) -> bytes:
    parts = []
    for each in range(number, number + chance.randrange(1, most)):
        make = odd_properties if chance.random() < odd else plain_properties
        body = chance.randbytes(chance.choice([0, 1, 16, 128, 1024]))
        parts.append(element(body, make(each, chance).encode(), chance.choice([0, 0, 0, 7, -1])))
    return b"".join(parts)


def frame(
    number: int, code: int, text: str, body: bytes, chance: random.Random, *, odd: bool = False, oneway: bool = False,
    binary: float = 0.25,
) -> bytes:  # fmt: skip
    fields = {
        "a": "producers", "b": chance.choice(TOPICS), "c": "TBW102", "d": "4", "e": str(chance.randrange(4)), "f": "0",
        "g": str(1_700_000_000_000 + number), "h": "0", "i": text, "j": "0", "k": "false",
        "m": "true" if code == BATCH else "false", "n": "broker-a",
    }  # fmt: skip
    if odd:
        name, value = chance.choice(
            [("e", "9"), ("e", "-1"), ("e", "01"), ("f", "3"), ("f", "4096"), ("f", "4"), ("g", "-5"), ("g", "x"),
             ("h", "-1"), ("h", "1023"), ("h", "99999999999"), ("j", "3"), ("j", "-2"), ("b", RETRY), ("b", ""),
             ("b", "ünicode"), ("q", "more"), ("k", "true"), ("e", "3 "), ("f", "+1"), ("g", "9" * 19)]
        )  # fmt: skip
        fields[name] = value
        if chance.random() < 0.1:
            del fields[chance.choice("begj")]
    flag = 2 if oneway else 0
    if chance.random() < binary:
        command = Command(code, number, flag, fields, language="JAVA", version=479, body=body, binary=True)
        return command.encode()
    members: list[tuple[str, object]] = [
        ("code", code), ("extFields", fields), ("flag", flag), ("language", "JAVA"), ("opaque", number),
        ("serializeTypeCurrentRPC", "JSON"), ("version", 479),
    ]  # fmt: skip
    if odd:
        chance.shuffle(members)
        if chance.random() < 0.2:
            members.append(chance.choice([("remark", None), ("remark", "x"), ("more", [1]), ("opaque", number)]))
        if chance.random() < 0.1:
            # Without code or opaque it would be the connection's last.
            members.remove(chance.choice([member for member in members if member[0] not in ("code", "opaque")]))
    header = orjson.dumps(dict(members), option=orjson.OPT_INDENT_2 if odd and chance.random() < 0.2 else 0)
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def mixed(
    seed: int, count: int, *, plain: float = 0.6, binary: float = 0.25, other_codes: Sequence[int] = ANY
) -> Iterator[bytes]:
    """So many frames: such a share of them plain, the others odd or refused; such a share with a binary header."""
    chance = random.Random(seed)
    for number in range(0, count * 64, 64):
        kind = chance.random()
        text = plain_properties(number, chance)
        body = chance.randbytes(chance.choice([0, 16, 128, 1024, 5000]))
        some = batch_body(number, chance, most=4)
        either = chance.choice([SEND, BATCH])
        if kind < plain:
            kind = chance.random()
            if kind < 0.55:
                yield frame(number, SEND, text, body, chance, binary=binary)
            elif kind < 0.9:
                yield frame(number, BATCH, text, batch_body(number, chance), chance, binary=binary)
            else:
                yield frame(number, either, text, some, chance, oneway=True, binary=binary)
            continue
        kind = chance.random()
        if kind < 0.25:
            yield frame(number, SEND, odd_properties(number, chance), body, chance, binary=binary)
        elif kind < 0.5:
            odd = batch_body(number, chance, odd=0.1, most=6)
            yield frame(number, BATCH, odd_properties(number, chance), odd, chance, binary=binary)
        elif kind < 0.75:
            yield frame(number, either, text, some, chance, odd=True, binary=binary)
        elif kind < 0.9:
            damaged = bytearray(some)
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            yield frame(number, BATCH, text, bytes(damaged), chance, binary=binary)
        else:
            yield Command(chance.choice(other_codes), number, 0, {"topic": "orders", "queueId": "1"}).encode()


def in_chunks(frames: Iterator[bytes], seed: int) -> Iterator[bytes]:
    """The same bytes, cut anywhere."""
    chance = random.Random(seed)
    data = bytearray()
    for one in frames:
        data += one
        while len(data) > (size := chance.choice([1, 5, 100, 1000, 5000, 20_000, 65_536, 200_000])):
            yield bytes(data[:size])
            del data[:size]
            if size < 1000:
                break
    yield bytes(data)
