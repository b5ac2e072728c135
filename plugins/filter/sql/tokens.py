"""The words of an expression, one at a time (RocketMQ: ``SelectorParserTokenManager``).

=========  =========================================================================================
word       a letter, ``_`` or ``$``, then letters, digits, ``_``, ``$`` (ASCII); a keyword in any case, else a name
integer    ``0``, or digits that begin with another one and may end in ``l`` or ``L``
float      ``5.5``  ``5.``  ``.5``  ``5E10``
text       in single quotes, with ``''`` for a quote inside; line ends are allowed
sign       ``=  <>  <  <=  >  >=  (  )  ,  +  -``
skipped    blanks, ``/* … */``, and ``-- …`` up to a line end, which must be there
=========  =========================================================================================

At each place the longest one wins, which has consequences that RocketMQ's users know: ``03`` is ``0``
followed by ``3``, ``0l`` is ``0`` followed by the name ``l``, and ``--`` on a last line without a line end is two
minus signs. Tokens are made only when the parser asks: RocketMQ ignores whatever follows a complete
expression, so a character that begins no token is an error only where a token is really wanted.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from verniermq.plugins.filter.sql.errors import SqlRefused

KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

# The float stands before the integer because it is the longer one wherever both match.
_TOKEN: Final = re.compile(
    r"""
    (?P<word>    [a-z_$] [a-z0-9_$]* )
  | (?P<float>   [0-9]+ \. [0-9]* (?:e[+-]?[0-9]+)?  |  \. [0-9]+ (?:e[+-]?[0-9]+)?  |  [0-9]+ e[+-]?[0-9]+ )
  | (?P<integer> 0 | [1-9] [0-9]* l? )
  | (?P<text>    ' (?: '' | [^'] )* ' )
  | (?P<sign>    <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_SKIPPED: Final = re.compile(r"(?: [ \t\n\r\f] | --[^\n\r]*[\n\r] | /\*[^*]*\*+(?:[^*/][^*]*\*+)*/ )*", re.VERBOSE)

END: Final = "end"


@attrs.frozen
class Token:
    kind: str
    """``name``, ``integer``, ``float``, ``text`` or ``end``; a keyword or a sign is its own kind."""
    written: str
    position: int

    def __str__(self) -> str:
        return "the end of the expression" if self.kind == END else repr(self.written)


def read_token(expression: str, position: int) -> Token:
    """The token at ``position``, or after what is skipped there.

    Raises:
        SqlRefused: the character there begins no token.
    """
    skipped = _SKIPPED.match(expression, position)
    start = skipped.end() if skipped else position
    if start == len(expression):
        return Token(END, "", start)
    match = _TOKEN.match(expression, start)
    if match is None:
        raise SqlRefused(expression, start, _what_is_wrong(expression, start))
    written = match.group()
    kind = match.lastgroup or END
    if kind == "word":
        keyword = written.upper()
        kind = keyword if keyword in KEYWORDS else "name"
    elif kind == "sign":
        kind = written
    return Token(kind, written, start)


def _what_is_wrong(expression: str, position: int) -> str:
    character = expression[position]
    if character == "'":
        return "this text has no closing quote"
    if expression.startswith("/*", position):
        return "this comment has no closing */"
    if character == '"':
        return 'a text stands in single quotes, not in "double" ones'
    if character == "!":
        return "'!' means nothing here; unequal is written <>"
    if character == ".":
        return "'.' means nothing here; a property name has letters, digits, '_' and '$' only"
    return f"the character {character!r} means nothing here"
