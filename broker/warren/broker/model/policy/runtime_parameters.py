"""Runtime parameters of a broker: policies, and those of components (https://www.rabbitmq.com/docs/parameters)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Final

from warren.broker.model.compat_checks import PortabilityChecks
from warren.broker.model.operator_errors import ObjectNotFound
from warren.broker.model.policy.policies import Policy
from warren.broker.model.policy.policy_keys import (
    DEAD_LETTER_KEY,
    HA_KEYS,
    InvalidPolicy,
    Json,
    check_names,
    format_settings,
    name_size,
)
from warren.broker.model.server_names import LONGEST_NAME, generate_name
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.broker.store.definitions.definition_rows import GlobalParameterRow, ParameterRow
from warren.broker.store.definitions.definitions_database import Definitions
from warren.wire.reply_codes import AmqpError

logger = logging.getLogger(__name__)

POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator_policy"
SHOVEL: Final = "shovel"
CLUSTER_TAGS: Final = "cluster_tags"
CLUSTER_ID: Final = "internal_cluster_id"


class RuntimeParameters:
    """Runtime parameters of one broker. Changes are written to the definitions database.

    A parameter belongs to a component. Those of the components `policy` and `operator_policy` are policies. Those of the
    components in `checks` have an effect. All others only come with definitions: they are stored, listed and exported.
    """

    def __init__(self, virtual_hosts: VirtualHosts, definitions: Definitions | None) -> None:
        self.globals: dict[str, Json] = {}
        """Global parameters by name."""
        self.stored: dict[tuple[bytes, str, str], Json] = {}
        """Values of the parameters that are no policies, by virtual host, component and name."""
        self.checks: dict[str, Callable[[str, Json], None]] = {}
        """Functions that check the name and the value of a parameter, by component. They raise `OperationRefused`."""
        self.on_changed: list[Callable[[bytes, str, str], None]] = []
        """Functions that are called with virtual host, component and name of a parameter that was set or removed."""
        self._virtual_hosts = virtual_hosts
        self._definitions = definitions
        virtual_hosts.on_deleted.append(self._forget)

    # -- policies

    def set_policy(self, vhost: VirtualHost, policy: Policy, *, is_restored: bool = False) -> None:
        """Add or replace a policy of a virtual host.

        :param is_restored: True for a copy of an existing policy, which an earlier version may have accepted.
        :raises InvalidPolicy: if a name in the policy is longer than AMQP allows, or if the portability checks are strict
            and RabbitMQ 4.3 would refuse the policy.
        """
        if not is_restored:
            check_names(policy.definition)
        check_portability(vhost.portability, policy)
        vhost.policies.put(policy)
        self._put(vhost.name, policy_component(policy.operator), policy.name, policy.to_value())

    def clear_policy(self, vhost: VirtualHost, name: str, operator: bool) -> None:
        """Remove a policy of a virtual host.

        :param operator: True for an operator policy.
        :raises ObjectNotFound: if it does not exist.
        """
        if not vhost.policies.remove(name, operator):
            raise ObjectNotFound("Parameter does not exist")
        self._remove(vhost.name, policy_component(operator), name)

    # -- parameters of components

    def set(self, vhost: bytes, component: str, name: str, value: Json) -> None:
        """Set a parameter of a virtual host that is no policy.

        :param vhost: the virtual host's name in UTF-8.
        :param component: the component that the parameter belongs to, such as `shovel`.
        :raises OperationRefused: if the component does not accept the value.
        """
        check = self.checks.get(component)
        if check is not None:
            check(name, value)
        key = (vhost, component, name)
        if key in self.stored and json.dumps(self.stored[key]) == json.dumps(value):
            return
        self.stored[key] = value
        self._put(vhost, component, name, value)
        self._report_change(*key)

    def clear(self, vhost: bytes, component: str, name: str) -> None:
        """Remove a parameter of a virtual host that is no policy.

        :param vhost: the virtual host's name in UTF-8.
        :param component: the component that the parameter belongs to, such as `shovel`.
        :raises ObjectNotFound: if it does not exist.
        """
        if self.stored.pop((vhost, component, name), self) is self:
            raise ObjectNotFound("Parameter does not exist")
        self._remove(vhost, component, name)
        self._report_change(vhost, component, name)

    def set_global(self, name: str, value: Json) -> None:
        """Add or replace a global parameter, one that belongs to no virtual host."""
        self.globals[name] = value
        if self._definitions is not None:
            self._definitions.put(GlobalParameterRow(name, json.dumps(value)))

    def clear_global(self, name: str) -> None:
        """Remove a global parameter, one that belongs to no virtual host.

        :raises ObjectNotFound: if it does not exist.
        """
        if self.globals.pop(name, self) is self:
            raise ObjectNotFound("Parameter does not exist")
        if self._definitions is not None:
            self._definitions.remove(GlobalParameterRow, name)

    def add_cluster_parameters(self) -> None:
        """Add the global parameters of each RabbitMQ cluster that are missing: its tags, and an id that it keeps."""
        if CLUSTER_TAGS not in self.globals:
            self.set_global(CLUSTER_TAGS, [])
        if CLUSTER_ID not in self.globals:
            self.set_global(CLUSTER_ID, generate_name(b"rabbitmq-cluster-id").decode())

    # -- recovery

    def restore(self, rows: Sequence[ParameterRow], globals: Sequence[GlobalParameterRow]) -> None:
        """Restore the stored parameters at start, before queues and exchanges are restored.

        An invalid policy is logged and left out. So is a dead letter routing key that is longer than AMQP allows, which
        earlier versions accepted; the other settings of its policy are kept.

        :param rows: the parameters of virtual hosts, among them the policies.
        :param globals: the parameters of the broker as a whole.
        """
        for row in rows:
            value = json.loads(row.value, parse_constant=_null)
            if row.component not in (POLICY, OPERATOR_POLICY):
                self.stored[row.vhost, row.component, row.name] = value
                continue
            definition = value.get("definition") if isinstance(value, dict) else None
            if isinstance(definition, dict) and name_size(definition.get(DEAD_LETTER_KEY)) > LONGEST_NAME:
                logger.warning(
                    "event=policy.setting_ignored name=%r setting=%s reason=%r",
                    row.name,
                    DEAD_LETTER_KEY,
                    f"it is longer than {LONGEST_NAME} bytes",
                )
                del definition[DEAD_LETTER_KEY]
                if not definition:
                    continue
            try:
                policy = Policy.from_value(row.name, value, row.component == OPERATOR_POLICY)
            except InvalidPolicy as reason:
                logger.error("event=policy.restore_failed name=%r reason=%r", row.name, str(reason))
            else:
                self._virtual_hosts.declarations[row.vhost].vhost.policies.put(policy)
        for each in globals:
            self.globals[each.name] = json.loads(each.value, parse_constant=_null)

    def _put(self, vhost: bytes, component: str, name: str, value: Json) -> None:
        if self._definitions is not None:
            self._definitions.put(ParameterRow(vhost, component, name, json.dumps(value)))

    def _remove(self, vhost: bytes, component: str, name: str) -> None:
        if self._definitions is not None:
            self._definitions.remove(ParameterRow, vhost, component, name)

    def _forget(self, vhost: str) -> None:
        """Forget the parameters of a deleted virtual host. Their rows in the database are deleted with it."""
        for key in [key for key in self.stored if key[0] == vhost.encode()]:
            del self.stored[key]
            self._report_change(*key)

    def _report_change(self, vhost: bytes, component: str, name: str) -> None:
        for call in self.on_changed:
            call(vhost, component, name)


def _null(_: str) -> None:
    """Return null for NaN and infinite numbers, which earlier versions stored, and JSON cannot have."""


def check_portability(portability: PortabilityChecks, policy: Policy) -> None:
    """Check a policy for features that RabbitMQ 4.3 refuses or ignores, and log their use.

    :raises InvalidPolicy: if the checks are strict and RabbitMQ would refuse the policy.
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
    """Return the component of the runtime parameters that hold policies: `policy` or `operator_policy`.

    :param operator: True for operator policies.
    """
    return OPERATOR_POLICY if operator else POLICY
