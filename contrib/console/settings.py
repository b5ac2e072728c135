"""How a console is run: the settings of the plugin, which the command has as options."""

from __future__ import annotations

import ipaddress
from typing import Final

import attrs

from verniermq.kernel import ConfigError, parse_address, setting

COLOURS: Final = ("", "red", "amber", "green", "blue", "grey")


def _colour(text: str) -> str | None:
    return None if text in COLOURS else f"one of {', '.join(COLOURS[1:])}"


def listen_address(text: str) -> tuple[str, int]:
    """Host and port; unlike the address of a peer, port 0 is one: a free one is taken.

    Raises:
        ValueError: it is neither.
    """
    if text.endswith(":0"):
        return parse_address(f"{text[:-1]}1")[0], 0
    return parse_address(text)


AUTHENTICATIONS: Final = ("none", "accounts")


def _authentication(text: str) -> str | None:
    return None if text in AUTHENTICATIONS else f"one of {', '.join(AUTHENTICATIONS)}"


def _is_address(text: str) -> str | None:
    try:
        listen_address(text or "127.0.0.1:0")
    except ValueError:
        return 'host:port, such as "127.0.0.1:8089"'
    return None


@attrs.frozen
class Config:
    """``[plugins.console]``"""

    listen: str = setting(
        "127.0.0.1:8089",
        'Where the console is served, host:port; "" serves it where http serves its pages.',
        check=_is_address,
    )
    label: str = setting("", "The name of the environment, shown on top of every page, such as production.")
    colour: str = setting("", "The colour of the label: red, amber, green, blue or grey.", check=_colour)
    read_only: bool = setting(True, "Whether nothing may be changed from the console.")
    authentication: str = setting(
        "none", "Who may use it: none asks nobody, on loopback only; accounts are those of acl.", check=_authentication
    )
    mask: tuple[str, ...] = setting((), "Members of JSON bodies and properties that are not shown, such as card.")
    access_key: str = setting("", "The account that the console asks the brokers with, where access is controlled.")
    secret_key: str = setting("", "The secret of that account.", secret=True)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(config: Config) -> None:
    """
    Raises:
        ConfigError: the settings do not go together.
    """
    if not config.listen:
        raise ConfigError("a console outside of a broker listens on an address of its own")
    host, _ = listen_address(config.listen)
    if config.authentication == "none" and not is_loopback(host):
        raise ConfigError(
            f"the console would listen on {config.listen}, where everybody could use it without an account; "
            "let it listen on 127.0.0.1, or set authentication to accounts"
        )
