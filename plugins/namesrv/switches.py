"""The settings of a name server that may change while it runs (``mqadmin getNamesrvConfig``, ``updateNamesrvConfig``).

They last until it stops: it has no file of its own. Names and defaults are RocketMQ's, but for one: orders of topics
are told to clients, which an Apache name server leaves out unless ``orderMessageEnable`` is set.
"""

from __future__ import annotations

from typing import Final

from verniermq.kernel import InvalidParameter, NoPermission, nearest

SWITCHES: Final = {
    "enableAllTopicList": True,
    "enableTopicList": True,
    "orderMessageEnable": True,
    "returnOrderTopicConfigToBroker": True,
}
FIXED: Final = {
    "clusterTest": "false",
    "deleteTopicWithBrokerRegistration": "false",
    "enableControllerInNamesrv": "false",
    "notifyMinBrokerIdChanged": "false",
    "productEnvName": "center",
    "scanNotActiveBrokerInterval": "5000",
    "supportActingMaster": "false",
}
"""How things are here, by RocketMQ's names."""


class Switches(dict[str, bool]):
    def __init__(self) -> None:
        super().__init__(SWITCHES)

    def text(self) -> str:
        """Java properties text."""
        shown = {**FIXED, **{name: str(value).lower() for name, value in self.items()}}
        return "".join(f"{name}={value}\n" for name, value in sorted(shown.items()))

    def change(self, body: bytes) -> None:
        """Take lines of name=value; all of them or none.

        Raises:
            InvalidParameter: a name is unknown, or a value is neither true nor false.
            NoPermission: a setting cannot change.
        """
        changes = {}
        for line in body.decode(errors="replace").splitlines():
            name, _, value = map(str.strip, line.partition("="))
            if not name or name[0] in "#!":
                continue
            if name in FIXED:
                raise NoPermission(f"{name} is {FIXED[name]} here, and cannot change")
            if name not in self:
                raise InvalidParameter(f"this name server has no setting {name!r:.80}; {nearest(name, self)}")
            if value not in ("true", "false"):
                raise InvalidParameter(f"{name} = {value!r:.80}: expected true or false")
            changes[name] = value == "true"
        self.update(changes)

    def insist(self, name: str) -> None:
        """
        Raises:
            NoPermission: it is switched off.
        """
        if not self[name]:
            raise NoPermission(f"{name} is false; mqadmin updateNamesrvConfig -k {name} -v true allows it")
