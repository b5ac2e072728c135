"""Whether a request was signed with a secret (RocketMQ: ``AclSigner``).

The signature is base64 of HMAC-SHA1 over the values of all header fields, sorted by name, without separators, and then
the body. Four kinds of clients sign a little less than they send, and what they leave out is left out here::

    Java before 4.9.4       _UNIQUE_KEY_QUERY, which it adds after signing
    Java with zones         __ZONE_NAME and __ZONE_MODE, likewise
    Go with a token         SecurityToken
    every client            Signature itself
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from verniermq.kernel.remoting.command import Command

ACCESS_KEY: Final = "AccessKey"
"""The field of a request that says who signed it."""
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

NEVER_SIGNED: Final = frozenset({SIGNATURE, "__ZONE_NAME", "__ZONE_MODE"})
LAST_WITHOUT_UNIQUE_KEY_QUERY: Final = 399
"""The version of a request, as Java 4.9.3 says it."""


def is_signed_with(secret: bytes, request: Command) -> bool:
    """Compare in constant time: how long it takes tells nothing about where a guess goes wrong."""
    import hmac  # see digest

    try:
        given = base64.b64decode(request.ext.get(SIGNATURE, ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    fields = {name: value for name, value in request.ext.items() if name not in NEVER_SIGNED}
    if request.version <= LAST_WITHOUT_UNIQUE_KEY_QUERY:
        fields.pop(UNIQUE_KEY_QUERY, None)
    if hmac.compare_digest(digest(secret, fields, request.body), given):
        return True
    if fields.pop(SECURITY_TOKEN, None) is None:
        return False
    return hmac.compare_digest(digest(secret, fields, request.body), given)


def digest(secret: bytes, fields: Mapping[str, str], body: bytes) -> bytes:
    # Here, since it sets up OpenSSL: half a megabyte that a broker without secrets does without.
    import hmac

    # Java sorts by UTF-16 code units; field names are ASCII, where that is the same order.
    content = "".join([fields[name] for name in sorted(fields)]).encode()
    return hmac.digest(secret, content + body, "sha1")
