"""The runtime parameters of one broker: its policies, and values that are kept for whoever asks for them.

https://www.rabbitmq.com/docs/parameters. Every change is stored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final

from warren.broker.model.compat_checks import PortabilityChecks
from warren.broker.model.operator_errors import ObjectNotFound
from warren.broker.model.policy.policies import Policy
from warren.broker.model.policy.policy_keys import HA_KEYS, InvalidPolicy, Json, format_settings
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.broker.store.definitions.definition_rows import GlobalParameterRow, ParameterRow
from warren.broker.store.definitions.definitions_database import Definitions
from warren.wire.reply_codes import AmqpError

logger = logging.getLogger(__name__)

POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator_policy"


class RuntimeParameters:
    """All runtime parameters. One whose component is not there has no effect: it is kept, listed and exported."""

    def __init__(self, virtual_hosts: VirtualHosts, definitions: Definitions | None) -> None:
        self.globals: dict[str, Json] = {}
        """By name."""
        self.stored: dict[tuple[bytes, str, str], Json] = {}
        """By virtual host, component and name; without the policies."""
        self._virtual_hosts = virtual_hosts
        self._definitions = definitions
        virtual_hosts.on_deleted.append(self._forget)

    # -- policies

    def set_policy(self, vhost: VirtualHost, policy: Policy) -> None:
        """Set a policy, or put it in the place of the one of its name.

        :raises InvalidPolicy: if it is not portable, and only what is portable is taken.
        """
        check_portability(vhost.portability, policy)
        vhost.policies.put(policy)
        self._put(vhost.name, policy_component(policy.operator), policy.name, policy_to_value(policy))

    def clear_policy(self, vhost: VirtualHost, name: str, operator: bool) -> None:
        """Take a policy away.

        :raises ObjectNotFound: if there is none of that name.
        """
        if not vhost.policies.remove(name, operator):
            raise ObjectNotFound("Parameter does not exist")
        self._remove(vhost.name, policy_component(operator), name)

    # -- what is kept

    def set(self, vhost: bytes, component: str, name: str, value: Json) -> None:
        """Keep a parameter of a virtual host that has no effect here."""
        self.stored[vhost, component, name] = value
        self._put(vhost, component, name, value)

    def clear(self, vhost: bytes, component: str, name: str) -> None:
        """
        :raises ObjectNotFound: if there is none of that name.
        """
        if self.stored.pop((vhost, component, name), self) is self:
            raise ObjectNotFound("Parameter does not exist")
        self._remove(vhost, component, name)

    def set_global(self, name: str, value: Json) -> None:
        """Keep a value for the broker as a whole."""
        self.globals[name] = value
        if self._definitions is not None:
            self._definitions.put(GlobalParameterRow(name, json.dumps(value)))

    def clear_global(self, name: str) -> None:
        """
        :raises ObjectNotFound: if there is none of that name.
        """
        if self.globals.pop(name, self) is self:
            raise ObjectNotFound("Parameter does not exist")
        if self._definitions is not None:
            self._definitions.remove(GlobalParameterRow, name)

    # -- what was there before

    def restore(self, rows: Sequence[ParameterRow], globals: Sequence[GlobalParameterRow]) -> None:
        """Take what was stored, without storing it; before there are queues and exchanges."""
        for row in rows:
            value = json.loads(row.value)
            if row.component not in (POLICY, OPERATOR_POLICY):
                self.stored[row.vhost, row.component, row.name] = value
                continue
            try:
                policy = policy_from_value(row.name, value, row.component == OPERATOR_POLICY)
            except InvalidPolicy as reason:
                logger.error("event=policy_not_restored name=%r reason=%r", row.name, str(reason))
            else:
                self._virtual_hosts.declarations[row.vhost].vhost.policies.put(policy)
        for each in globals:
            self.globals[each.name] = json.loads(each.value)

    def _put(self, vhost: bytes, component: str, name: str, value: Json) -> None:
        if self._definitions is not None:
            self._definitions.put(ParameterRow(vhost, component, name, json.dumps(value)))

    def _remove(self, vhost: bytes, component: str, name: str) -> None:
        if self._definitions is not None:
            self._definitions.remove(ParameterRow, vhost, component, name)

    def _forget(self, vhost: str) -> None:
        """A virtual host is gone; what was stored of it as well."""
        for key in [key for key in self.stored if key[0] == vhost.encode()]:
            del self.stored[key]


def check_portability(portability: PortabilityChecks, policy: Policy) -> None:
    """
    :raises InvalidPolicy: for what RabbitMQ would refuse, if that is refused here.
    """
    mirroring = policy.definition.keys() & HA_KEYS
    if mirroring:
        try:
            portability.check(
                "mirror_policy", format_settings({key: policy.definition[key] for key in mirroring})
            )
        except AmqpError as error:
            raise InvalidPolicy(error.explanation) from None
    if "delivery-limit" in policy.definition and policy.apply_to in ("all", "queues", "classic_queues"):
        portability.check("limit_policy")


def policy_component(operator: bool) -> str:
    return OPERATOR_POLICY if operator else POLICY


def policy_to_value(policy: Policy) -> dict[str, Json]:
    """A policy as the value of a runtime parameter, which is how RabbitMQ keeps it."""
    return {
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "pattern": policy.pattern,
        "priority": policy.priority,
    }


def policy_from_value(name: str, value: Json, operator: bool) -> Policy:
    """
    :raises InvalidPolicy: if it is none.
    """
    if not isinstance(value, dict):
        raise InvalidPolicy("a policy is an object")
    missing = [key for key in ("pattern", "definition") if key not in value]
    if missing:
        raise InvalidPolicy(f'Key "{missing[0]}" not found in {name}')
    # What the fields may be, the policy checks.
    fields: dict[str, Json] = {"apply_to": value.get("apply-to"), "priority": value.get("priority")}
    given = {key: field for key, field in fields.items() if field is not None}
    return Policy(name, value["pattern"], value["definition"], **given, operator=operator)  # type: ignore[arg-type]
