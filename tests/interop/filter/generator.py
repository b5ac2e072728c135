"""Random SQL expressions and properties: mostly well formed, now and then damaged.

Names and values come from short lists, so that properties are often present, often missing, and often
something that one conversion takes and another refuses.
"""

from __future__ import annotations

from random import Random

from .judge import Question

NAMES = ("a", "b", "c", "_x", "$y", "A1")
INTEGERS = (
    "0", "1", "3", "7l", "42L", "2147483647", "2147483648", "9223372036854775807", "03", "9007199254740993",
)  # fmt: skip
FLOATS = (
    "0.5", "3.0", "5.", ".5", "3E0", "1e-3", "1.7976931348623157E308", "2147483648.0", "9007199254740992.0",
    "03.5",
)  # fmt: skip
BAD_NUMBERS = ("0.0", "9223372036854775808", "1e400", "1e-400", "0l")
TEXTS = (
    "''", "'x'", "'xyz'", "'3'", "'true'", "'it''s'", "'é😀'", "'TRUE'", "' '", "'-- no /* comment'",
    "'a\nb'",
)  # fmt: skip
VALUES = (
    "0", "-0", "1", "+3", "3", "-3", "003", "3.0", "3.5", "42", "2147483647", "2147483648", "-2147483648",
    "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e3", "1E400",
    "-1e400",
    "1e-400", ".5", "5.", "0.0", "-0.0", "NaN", "-NaN", "nan", "Infinity", "-Infinity", "inf", "1.5f", "1.5D",
    "7L",
    "0x1p3", "0x10", "-0x.8P1d", "0x1p99999", "1_000", " 3", "3 ", "\t3.5\n", "\u00a03", "٣", "３",
    "\U0001d7d1", "٣.٥",
    "", " ", "-", "+", ".", "e5", "--3", "+-3", "true", "TRUE", "True", "false", "yes", " true", "x", "xyz",
    "X",
    "it's", "é😀", "a\nb", "9007199254740993", "9007199254740992", "0" * 30 + "7", "1" * 30, "²", "१२",
)  # fmt: skip
SIGNS = ("=", "<>", "<", "<=", ">", ">=")
BLANKS = (" ",) * 12 + ("  ", "\n", "\t", "\r\n", "\f", " /* c */ ", " /***/ ", " -- c\n", " --\r")
NOISE = (
    "#", "!=", '"x"', ".", "/", "/*", "*/", "--", "-- c", "%", "LIKE 'x%'", "garbage", ")", "(", "3", "'x'",
    "'", ",",
    "NOT", "AND", "IS", "NULL", "\u00a0", "é", "K", "ſ", "\x00", ";", "[", "&&", "||", "+ 1", "* 2", "==",
    "IN", "BETWEEN", "=",
    "+", "-",
)  # fmt: skip


def random_questions(seed: int, count: int) -> list[Question]:
    random = Random(seed)
    return [random_question(random) for _ in range(count)]


def random_question(random: Random) -> Question:
    tokens = _condition(random, random.randrange(4))
    for _ in range(random.choice((0, 0, 0, 0, 1, 1, 2))):
        _damage(random, tokens)
    pieces = [_cased(random, token) + (random.choice(BLANKS) if random.random() < 0.95 else "") for token in tokens]
    return {"expression": "".join(pieces), "properties": _properties(random)}


def _properties(random: Random) -> dict[str, str]:
    return {name: random.choice(VALUES) for name in NAMES if random.random() < 0.7}


def _cased(random: Random, token: str) -> str:
    """A keyword in another case; a name stays as it is, since its case matters."""
    if token.isalpha() and token.isupper() and len(token) > 1 and random.random() < 0.3:
        return random.choice((token.lower(), token.title()))
    return token


def _damage(random: Random, tokens: list[str]) -> None:
    place = random.randrange(len(tokens) + 1)
    if random.random() < 0.3:
        place = len(tokens)
    if random.random() < 0.3 and place < len(tokens):
        del tokens[place]
    else:
        tokens.insert(place, random.choice(NOISE))


def _condition(random: Random, depth: int) -> list[str]:
    roll = random.random()
    if depth > 0 and roll < 0.5:
        row = _condition(random, depth - 1)
        for _ in range(random.randrange(1, 4)):
            row += [random.choice(("AND", "OR")), *_condition(random, depth - 1)]
        return row if random.random() < 0.4 else ["(", *row, ")"]
    if depth > 0 and roll < 0.65:
        return ["NOT", *(["(", *_condition(random, depth - 1), ")"] if random.random() < 0.7 else _operand(random, 0))]
    return _simple(random, depth)


def _simple(random: Random, depth: int) -> list[str]:
    left = [random.choice(NAMES)] if random.random() < 0.85 else _operand(random, depth)
    negation = ["NOT"] if random.random() < 0.4 else []
    match random.randrange(10):
        case 0:
            return [*left, "IS", *negation, "NULL"]
        case 1:
            return [*left, *negation, random.choice(("CONTAINS", "STARTSWITH", "ENDSWITH")), random.choice(TEXTS)]
        case 2:
            more = [part for _ in range(random.randrange(6)) for part in (",", random.choice(TEXTS))]
            return [*left, *negation, "IN", "(", random.choice(TEXTS), *more, ")"]
        case 3:
            left = [random.choice(NAMES)] if random.random() < 0.8 else left
            return [*left, *negation, "BETWEEN", *_number(random), "AND", *_number(random)]
        case 4:
            return left
        case 5:
            return [random.choice(("TRUE", "FALSE", "NULL"))]
        case 6 | 7:
            return [*left, random.choice(SIGNS), *_number(random)]
        case 8:
            return [*left, random.choice(("=", "<>")), *_operand(random, depth)]
        case _:
            return [random.choice(NAMES), random.choice(SIGNS), random.choice(NAMES)]


def _number(random: Random) -> list[str]:
    if random.random() < 0.2:
        return [*random.choice(((), ("-",))), random.choice(NAMES)]
    sign = random.choice(((), (), (), ("-",), ("+",), ("-", "-")))
    numbers = BAD_NUMBERS if random.random() < 0.05 else random.choice((INTEGERS, FLOATS))
    return [*sign, random.choice(numbers)]


def _operand(random: Random, depth: int) -> list[str]:
    roll = random.random()
    if roll < 0.35:
        return [random.choice(NAMES)]
    if roll < 0.55:
        return [random.choice(TEXTS)]
    if roll < 0.75:
        return _number(random)
    if roll < 0.9 or depth == 0:
        return [*random.choice(((), (), ("-",), ("NOT",))), random.choice(("TRUE", "FALSE", "NULL"))]
    inner = ["(", *_condition(random, depth - 1), ")"]
    return ["-", *inner] if random.random() < 0.5 else inner
