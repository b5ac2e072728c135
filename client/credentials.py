"""Signed requests, for brokers with access control (RocketMQ: ``AclClientRPCHook``).

The signature is base64 of HMAC-SHA1 over the values of all header fields, sorted by name, without separators,
followed by the body. It covers neither the code nor the opaque, so it can be made before they are known.
"""

from __future__ import annotations

import base64
import hmac

import attrs

from verniermq.kernel import Command


@attrs.frozen
class Credentials:
    """An access key with its secret."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    security_token: str = attrs.field(default="", repr=False)

    def sign(self, command: Command) -> None:
        """Add who asks and the proof of it to a request. Signing again replaces the signature."""
        ext = command.ext
        ext.pop("Signature", None)
        ext["AccessKey"] = self.access_key
        if self.security_token:
            ext["SecurityToken"] = self.security_token
        digest = hmac.new(self.secret_key.encode(), digestmod="sha1")
        # Java sorts by UTF-16 code units; field names are ASCII, where that is the same order.
        digest.update("".join([ext[name] for name in sorted(ext)]).encode())
        digest.update(command.body)
        ext["Signature"] = base64.b64encode(digest.digest()).decode()
