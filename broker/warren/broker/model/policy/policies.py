"""Policies: settings for queues and exchanges whose names match a pattern. They act on existing objects, too.

At most one policy applies to an object: the one with the highest priority whose pattern matches its name. At most one
operator policy is merged into it. If an argument was declared for the same setting, the smaller of two numbers counts,
and of two names the declared one. Source: https://www.rabbitmq.com/docs/policies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from warren.broker.model.argument_checks import Overflow, argument_fields
from warren.broker.model.policy.policy_keys import (
    RETRY_TYPES,
    UNSUPPORTED_KEYS,
    InvalidPolicy,
    Json,
    check_policy,
)
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.stream.interval_format import parse_interval_ms
from warren.core.name_pattern import NamePattern
from warren.wire.field_tables import Field

if TYPE_CHECKING:
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.queue.queue import Queue
    from warren.broker.model.vhost.vhost import VirtualHost

Definition: TypeAlias = dict[str, Json]

ALL_QUEUES: Final = ("all", "queues")
QUEUES_OF: Final = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
EXCHANGES: Final = ("all", "exchanges")


@dataclass(frozen=True)
class Policy:
    """A policy or operator policy of a virtual host, checked at construction.

    :param pattern: regular expression that is searched for in the names of objects.
    :param definition: the settings that it applies, by key.
    :param apply_to: `queues`, `classic_queues`, `quorum_queues`, `streams`, `exchanges` or `all`.
    :raises InvalidPolicy: with RabbitMQ's text.
    """

    name: str
    pattern: str
    definition: Definition
    apply_to: str = "all"
    priority: int = 0
    operator: bool = False
    """True for an operator policy, which limits what other policies may set."""
    found_in: Callable[[bytes], bool] = field(init=False, repr=False, compare=False)
    """Function that returns True if a name contains the pattern."""

    def __post_init__(self) -> None:
        check_policy(self.pattern, self.apply_to, self.priority, self.definition, self.operator)
        object.__setattr__(self, "found_in", NamePattern(self.pattern).found_in)

    def applies_to_type(self, queue_type: str, strict: bool) -> bool:
        """Return True if the policy may apply to objects of a type.

        :param queue_type: `classic`, `quorum` or `stream`; empty for exchanges.
        :param strict: True if a delivery limit is for quorum queues only, as in RabbitMQ.
        """
        if not queue_type:
            return self.apply_to in EXCHANGES
        if self.apply_to not in ALL_QUEUES and self.apply_to != QUEUES_OF[queue_type]:
            return False
        if strict and queue_type == "classic" and "delivery-limit" in self.definition:
            return False
        return not UNSUPPORTED_KEYS[queue_type] & self.definition.keys()

    def to_value(self) -> dict[str, Json]:
        """Return the policy as the JSON value of a runtime parameter, with RabbitMQ's keys."""
        return {
            "apply-to": self.apply_to,
            "definition": self.definition,
            "pattern": self.pattern,
            "priority": self.priority,
        }

    @classmethod
    def from_value(cls, name: str, value: Json, operator: bool) -> Policy:
        """Return the policy that the JSON value of a runtime parameter describes.

        :param value: an object with `pattern` and `definition`, and optionally `apply-to` and `priority`.
        :param operator: True for an operator policy.
        :raises InvalidPolicy: if the value is no valid policy.
        """
        if not isinstance(value, dict):
            raise InvalidPolicy("a policy is an object")
        missing = [key for key in ("pattern", "definition") if key not in value]
        if missing:
            raise InvalidPolicy(f'Key "{missing[0]}" not found in {name}')
        # The constructor checks the types of the fields.
        fields: dict[str, Json] = {"apply_to": value.get("apply-to"), "priority": value.get("priority")}
        given = {key: field for key, field in fields.items() if field is not None}
        return cls(name, value["pattern"], value["definition"], **given, operator=operator)  # type: ignore[arg-type]


class Policies:
    """The policies of one virtual host, applied to its queues and exchanges."""

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self.user_policies: dict[str, Policy] = {}
        """Policies that are no operator policies, by name."""
        self.operator: dict[str, Policy] = {}
        """Operator policies by name."""

    def put(self, policy: Policy) -> None:
        """Add or replace a policy, and apply it to existing queues and exchanges (`refresh`)."""
        (self.operator if policy.operator else self.user_policies)[policy.name] = policy
        self.refresh()

    def remove(self, name: str, operator: bool) -> bool:
        """Remove a policy, and adjust queues and exchanges (`refresh`). Return False if it does not exist.

        :param operator: True for an operator policy.
        """
        if (self.operator if operator else self.user_policies).pop(name, None) is None:
            return False
        self.refresh()
        return True

    # -- matching

    def queue_policies(self, queue: Queue) -> tuple[Policy | None, Policy | None]:
        """Return the policy and the operator policy that apply to a queue; None in place of one that does not exist."""
        if not self.user_policies and not self.operator:
            return None, None
        kind = queue.declared_arguments.type_name
        return self._first(self.user_policies, queue.name, kind), self._first(self.operator, queue.name, kind)

    def exchange_policies(self, exchange: Exchange) -> tuple[Policy | None, Policy | None]:
        """Return the policy and the operator policy that apply to an exchange.

        None stands in place of one that does not exist.
        """
        return self._first(self.user_policies, exchange.name, ""), self._first(
            self.operator, exchange.name, ""
        )

    def _first(self, policies: Mapping[str, Policy], name: bytes, queue_type: str) -> Policy | None:
        if not policies:
            return None
        strict = self.vhost.portability.strict
        found = [
            policy
            for policy in policies.values()
            if policy.applies_to_type(queue_type, strict) and policy.found_in(name)
        ]
        return min(found, key=lambda policy: (-policy.priority, policy.name), default=None)

    # -- application

    def refresh(self) -> None:
        """Apply the current policies to all queues and exchanges, because a policy has changed.

        What a slice has no time for is done as bulk work, in the lane of this object.
        """
        queues = list(self.vhost.queues.values())
        exchanges = list(self.vhost.exchanges.values())
        queues.reverse()
        exchanges.reverse()
        self.vhost.bulk_work.run(self, lambda end: self._refresh_slice(queues, exchanges, end))

    def _refresh_slice(self, queues: list[Queue], exchanges: list[Exchange], end: float) -> bool:
        """Apply the current policies until a time; return True if no queue and no exchange is left.

        :param queues: the queues that are left, in reverse order.
        :param exchanges: the exchanges that are left, in reverse order.
        :param end: the time by `time.monotonic()`.
        """
        while queues or exchanges:
            if queues:
                queue = queues.pop()
                if not queue.deleted:
                    self.apply_to_queue(queue)
            else:
                self.apply_to_exchange(exchanges.pop())
            if time.monotonic() >= end:
                break
        return not queues and not exchanges

    def apply_to_queue(self, queue: Queue) -> None:
        """Set a queue's arguments in force: its declared arguments, merged with the policies that apply to it."""
        arguments = queue.declared_arguments
        definition = merge_definitions(*self.queue_policies(queue))
        if definition:
            arguments = effective_arguments(arguments, queue.raw_arguments, definition)
        if arguments != queue.arguments:
            queue.reconfigure(arguments)

    def apply_to_exchange(self, exchange: Exchange) -> None:
        """Set an exchange's alternate exchange: the declared one, otherwise that of the policies that apply to it."""
        declared = argument_fields(exchange.arguments).get("alternate-exchange")
        alternate = None
        if declared is not None:
            alternate = declared.raw[5:]
        elif exchange.name:
            name = merge_definitions(*self.exchange_policies(exchange)).get("alternate-exchange")
            alternate = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else None
        if alternate != exchange.alternate:
            exchange.alternate = alternate
            self.vhost.routing_epoch += 1


def merge_definitions(policy: Policy | None, operator: Policy | None) -> Definition:
    """Merge the settings of the policy and the operator policy that apply to an object.

    Of two numbers the smaller counts, of some the larger (`OPERATOR_MERGES`); of other values that of the operator policy.

    :param policy: the policy; None if none applies.
    :param operator: the operator policy; None if none applies.
    :return: the settings by key; empty if no policy applies.
    """
    if operator is None:
        return policy.definition if policy is not None else {}
    if policy is None:
        return operator.definition
    both = dict(policy.definition)
    for key, bound in operator.definition.items():
        own = both.get(key, bound)
        if key in OPERATOR_MERGES and isinstance(own, int) and isinstance(bound, int):
            bound = OPERATOR_MERGES[key](own, bound)
        both[key] = bound
    return both


# -- effective arguments


def smaller(first: int, second: int) -> int:
    """Return the smaller of two limits: a policy's and an operator policy's, or a policy's and a declared one."""
    return min(first, second)


def larger(first: int, second: int) -> int:
    """Return the larger of two numbers: a policy's and an operator policy's."""
    return max(first, second)


def smaller_limit(first: int, second: int) -> int:
    """Return the smaller of two delivery limits. A negative number is no limit, so that the other one counts."""
    return max(first, second) if first < 0 or second < 0 else min(first, second)


NUMBER_MERGES: Final[Mapping[str, Callable[[int, int], int]]] = {
    "expires": smaller,
    "message-ttl": smaller,
    "max-length": smaller,
    "max-length-bytes": smaller,
    "max-in-memory-length": smaller,
    "max-in-memory-bytes": smaller,
    "consumer-timeout": smaller,
    "stream-max-segment-size-bytes": smaller,
    "delivery-limit": smaller_limit,
}
"""Policy settings that are numbers, each with the function that merges the values of two sources.

The sources are a policy, an operator policy and the declared arguments.
"""

OPERATOR_MERGES: Final[Mapping[str, Callable[[int, int], int]]] = {
    **NUMBER_MERGES,
    "delayed-retry-max": smaller,
    "delayed-retry-min": larger,
    "target-group-size": larger,
}
"""Policy settings that are numbers, each with the function that merges those of a policy and an operator policy."""

NUMBER_FIELDS: Final = {
    key: key.replace("-", "_") for key in NUMBER_MERGES if not key.startswith("max-in-memory")
}
"""Policy settings with numbers that have an effect, and their fields in QueueArguments, where -1 is no limit."""

NAME_FIELDS: Final = {
    "dead-letter-exchange": "dead_letter_exchange",
    "dead-letter-routing-key": "dead_letter_routing_key",
}


LARGEST: Final = 2**53
"""Largest number that has an effect: 285,000 years in milliseconds. RabbitMQ takes any, and so larger ones count as this."""


def bounded(definition: Definition) -> Definition:
    """Return the settings of policies with integers of at most `LARGEST`, and negative ones of at least its negative."""
    return {
        key: max(-LARGEST, min(value, LARGEST)) if isinstance(value, int) else value
        for key, value in definition.items()
    }


def stream_changes(definition: Definition) -> dict[str, object]:
    """Return the fields of `QueueArguments` that policies set for a stream, by name.

    For a stream these take precedence over its declared arguments (rabbit_stream_queue).
    """
    changes: dict[str, object] = {}
    for key in ("max-length-bytes", "stream-max-segment-size-bytes"):
        value = definition.get(key)
        if isinstance(value, int):
            changes[NUMBER_FIELDS[key]] = value
    age = definition.get("max-age")
    if isinstance(age, str):
        changes["max_age_ms"] = parse_interval_ms(age.encode("utf-8", "surrogateescape"))
    return changes


def retry_changes(
    declared: QueueArguments, given: dict[str, Field], definition: Definition
) -> dict[str, object]:
    """Return the fields of `QueueArguments` for delayed retries that policies set for a quorum queue, by name.

    The policy's type takes precedence over the declared one; of two delays the smaller counts (rabbit_quorum_queue).

    :param given: the declared arguments by name.
    """
    if not any(f"delayed-retry-{name}" in definition for name in ("type", "min", "max")):
        return {}
    own = given.get("x-delayed-retry-type")
    kind = definition.get("delayed-retry-type")
    if kind is None and own is not None and isinstance(own.value, str):
        kind = own.value
    delays: dict[str, int] = {}
    for name, value in (("min", declared.delayed_retry_min), ("max", declared.delayed_retry_max)):
        # A maximum that is not declared has a default.
        declares = f"x-delayed-retry-{name}" in given and value >= 0
        bound = definition.get(f"delayed-retry-{name}")
        if isinstance(bound, int):
            delays[name] = min(value, bound) if declares else bound
        else:
            delays[name] = value if declares else -1
    is_delayed = kind in RETRY_TYPES and delays["min"] >= 0
    return {
        "delayed_retry": kind if is_delayed else "disabled",
        "delayed_retry_min": delays["min"],
        "delayed_retry_max": delays["max"] if delays["max"] >= 0 else delays["min"],
    }


def effective_arguments(declared: QueueArguments, raw: bytes, definition: Definition) -> QueueArguments:
    """Return a queue's arguments in force: the declared ones, changed by the settings of policies.

    :param raw: the encoded declared arguments, which show whether a value was declared or is a default.
    :param definition: the merged settings of the policy and the operator policy.
    """
    given = argument_fields(raw)
    definition = bounded(definition)
    changes: dict[str, object] = {}
    for key, name in NUMBER_FIELDS.items():
        value = definition.get(key)
        if isinstance(value, int):
            own = getattr(declared, name)
            changes[name] = NUMBER_MERGES[key](own, value) if f"x-{key}" in given else value
    for key, name in NAME_FIELDS.items():
        value = definition.get(key)
        if isinstance(value, str) and f"x-{key}" not in given:
            changes[name] = value.encode("utf-8", "surrogateescape")
    value = definition.get("overflow")
    if isinstance(value, str) and "x-overflow" not in given:
        changes["overflow"] = Overflow(value)
    mode = definition.get("queue-mode")
    if mode is not None and "x-queue-mode" not in given:
        changes["lazy"] = mode == "lazy"
    if declared.quorum:
        changes.update(retry_changes(declared, given, definition))
    if declared.stream:
        changes.update(stream_changes(definition))
    arguments = replace(declared, **changes)  # type: ignore[arg-type]
    strategy = given.get("x-dead-letter-strategy")
    kept = definition.get("dead-letter-strategy") if strategy is None else strategy.value
    return replace(
        arguments,
        at_least_once=kept == "at-least-once"
        and arguments.dead_letter_exchange is not None
        and arguments.overflow is Overflow.REJECT_PUBLISH,
    )
