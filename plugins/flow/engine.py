"""From rules to gates: which rules concern a call is worked out once, then found with one look into a dict.

    ("SEND_MESSAGE_V2", "billing", "orders", "10.0.0.5@7")  →  Gate(billing:orders, topic orders)

Kinds of which no rule speaks stay out of the key, so a million clients make one entry as long as no rule is about
clients. Names come from peers, hence the number of entries is bounded: when it is reached, resources that were not
called since the last time are dropped, and start again from nothing should they come back.

New rules may come at any time. A rule that stays keeps its figures and its place in time, per resource: editing the
limit of one topic neither cools down nor lets loose another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from verniermq.plugins.flow.breaker import Breaker
from verniermq.plugins.flow.gate import FlowResource, Gate
from verniermq.plugins.flow.rules import MAX_RESOURCES, BreakerRule, FlowRule, Kind, SystemRule
from verniermq.plugins.flow.shaper import Shaper
from verniermq.plugins.flow.system import SystemProtection

RuleT = TypeVar("RuleT")
AppliedT = TypeVar("AppliedT")


class Engine:
    """All rules of one broker or one client."""

    def __init__(
        self,
        rules: Sequence[FlowRule] = (),
        breakers: Sequence[BreakerRule] = (),
        system: SystemRule | None = None,
        *,
        max_resources: int = MAX_RESOURCES,
    ) -> None:
        self._max_resources = max_resources
        self._gates: dict[tuple[str, str, str, str, bool], Gate | None] = {}
        self._resources: dict[str, FlowResource] = {}
        self._rules: tuple[FlowRule, ...] = ()
        self._breakers: tuple[BreakerRule, ...] = ()
        self.system: SystemProtection | None = None
        self._by_group = self._by_topic = False
        self.limits_clients = self.limits_requests = False
        """Whether a rule speaks of clients, or of kinds of requests."""
        self.is_active = False
        """Whether there is any rule at all."""
        self.load(rules, breakers, system)

    @property
    def rules(self) -> tuple[FlowRule | BreakerRule, ...]:
        return (*self._rules, *self._breakers)

    @property
    def resources(self) -> tuple[FlowResource, ...]:
        """Those that calls were made to, with their figures."""
        return tuple(self._resources.values())

    def load(
        self, rules: Sequence[FlowRule], breakers: Sequence[BreakerRule], system: SystemRule | None = None
    ) -> None:
        """Replace all rules. Calls that run now end at the gate that they came through."""
        self._rules = tuple(rules)
        self._breakers = tuple(breakers)
        if system is None or not system.limits_anything:
            self.system = None
        elif self.system is None:
            self.system = SystemProtection(system)
        else:
            self.system.rule = system
        kinds = {rule.kind for rule in self.rules}
        self._by_group, self._by_topic = "resource" in kinds, "topic" in kinds
        self.limits_clients, self.limits_requests = "client" in kinds, "request" in kinds
        self.is_active = bool(kinds) or self.system is not None
        self._gates.clear()
        for resource in list(self._resources.values()):
            kind, _, name = resource.name.partition(" ")
            self._compile(resource, kind, name)  # type: ignore[arg-type]  # we wrote the name ourselves
            if not resource.shapers and not resource.breakers:
                del self._resources[resource.name]

    def gate(self, group: str, topic: str, client: str = "", request: str = "", *, inbound: bool = True) -> Gate | None:
        """The gate for such a call; ``None`` when no rule concerns it.

        ``inbound`` calls are those that the protection of the system counts and refuses.
        """
        key = (
            group if self._by_group else "",
            topic if self._by_group or self._by_topic else "",
            client if self.limits_clients else "",
            request if self.limits_requests else "",
            inbound,
        )
        try:
            return self._gates[key]
        except KeyError:
            return self._make_gate(key)

    def _make_gate(self, key: tuple[str, str, str, str, bool]) -> Gate | None:
        group, topic, client, request, inbound = key
        if len(self._gates) >= self._max_resources:
            self._drop_idle()
        found = []
        names: tuple[tuple[Kind, str, bool], ...] = (
            ("resource", f"{group}:{topic}", self._by_group),
            ("topic", topic, self._by_topic),
            ("client", client, self.limits_clients),
            ("request", request, self.limits_requests),
        )
        for kind, name, is_used in names:
            resource = self._resource(kind, name) if is_used else None
            if resource is not None:
                found.append(resource)
        system = self.system if inbound else None
        gate = Gate(tuple(found), system) if found or system is not None else None
        self._gates[key] = gate
        return gate

    def _resource(self, kind: Kind, name: str) -> FlowResource | None:
        full_name = f"{kind} {name}"
        resource = self._resources.get(full_name)
        if resource is None:
            resource = FlowResource(full_name)
            self._compile(resource, kind, name)
            if not resource.shapers and not resource.breakers:
                return None
            self._resources[full_name] = resource
        return resource

    def _compile(self, resource: FlowResource, kind: Kind, name: str) -> None:
        """Put the rules that concern a resource to work, those that did so before as they are."""
        shapers = [rule for rule in self._rules if rule.concerns(kind, name)]
        breakers = [rule for rule in self._breakers if rule.concerns(kind, name)]
        old_shapers: list[tuple[FlowRule, Shaper]] = list(resource.shapers)
        old_breakers: list[tuple[BreakerRule, Breaker]] = list(resource.breakers)
        resource.shapers = [_kept(rule, old_shapers) or (rule, rule.shaper()) for rule in shapers]
        resource.breakers = [_kept(rule, old_breakers) or (rule, rule.breaker()) for rule in breakers]

    def _drop_idle(self) -> None:
        """Drop the resources that nobody called since the last time; those in use keep their figures.

        So whoever makes up names cannot make the broker forget how much of a real one has passed.
        """
        self._gates.clear()
        kept = {}
        for name, resource in self._resources.items():
            calls = resource.node.passed + resource.node.blocked
            if resource.node.running or calls != resource.calls_before:
                resource.calls_before = calls
                kept[name] = resource
        self._resources = kept


def _kept(rule: RuleT, old: list[tuple[RuleT, AppliedT]]) -> tuple[RuleT, AppliedT] | None:
    """The same rule at work already; each is taken once, since a list may hold two that are equal."""
    for position, (earlier, _) in enumerate(old):
        if earlier == rule:
            return old.pop(position)
    return None
