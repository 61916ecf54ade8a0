"""Policies: what an operator sets for queues and exchanges by a pattern of their names, on live ones as well.

One policy governs an object, the one with the highest priority whose pattern is found in the name; an operator policy is
merged into it. What was declared counts beside it: of two numbers the smaller, of two names the declared one.
Source: https://www.rabbitmq.com/docs/policies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from warren.broker.model.argument_checks import Overflow, argument_fields
from warren.broker.model.policy.policy_keys import UNSUPPORTED_KEYS, Json, check_policy
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.stream.interval_format import parse_interval_ms

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
    """One policy of a virtual host, checked when it is made.

    :raises InvalidPolicy: with RabbitMQ's text.
    """

    name: str
    pattern: str
    definition: Definition
    apply_to: str = "all"
    priority: int = 0
    operator: bool = False
    """It bounds what other policies may set."""
    found_in: Callable[[str], object] = field(init=False, repr=False, compare=False)
    """Looks for the pattern in a name; None if it is not there."""

    def __post_init__(self) -> None:
        check_policy(self.pattern, self.apply_to, self.priority, self.definition, self.operator)
        object.__setattr__(self, "found_in", re.compile(self.pattern).search)


class Policies:
    """The policies of one virtual host, and what they make of its queues and exchanges."""

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self.user_policies: dict[str, Policy] = {}
        self.operator: dict[str, Policy] = {}

    def put(self, policy: Policy) -> None:
        """Add a policy, or put it in the place of the one of its name; live objects follow at once."""
        (self.operator if policy.operator else self.user_policies)[policy.name] = policy
        self.refresh()

    def remove(self, name: str, operator: bool) -> bool:
        """Take a policy away; False if there is none of that name."""
        if (self.operator if operator else self.user_policies).pop(name, None) is None:
            return False
        self.refresh()
        return True

    # -- who is governed by what

    def queue_policies(self, queue: Queue) -> tuple[Policy | None, Policy | None]:
        """The policy and the operator policy that govern a queue."""
        if not self.user_policies and not self.operator:
            return None, None
        kind = queue_type(queue)
        return self._first(self.user_policies, queue.name, kind), self._first(self.operator, queue.name, kind)

    def exchange_policies(self, exchange: Exchange) -> tuple[Policy | None, Policy | None]:
        """The policy and the operator policy that govern an exchange."""
        return self._first(self.user_policies, exchange.name, ""), self._first(
            self.operator, exchange.name, ""
        )

    def _first(self, policies: Mapping[str, Policy], name: bytes, queue_type: str) -> Policy | None:
        if not policies:
            return None
        text = name.decode("utf-8", "surrogateescape")
        found = [
            policy for policy in policies.values() if applies(policy, queue_type) and policy.found_in(text)
        ]
        return min(found, key=lambda policy: (-policy.priority, policy.name), default=None)

    # -- what follows from it

    def refresh(self) -> None:
        """Have every queue and exchange go by the policies as they are now."""
        for queue in list(self.vhost.queues.values()):
            if not queue.deleted:
                self.apply_to_queue(queue)
        for exchange in self.vhost.exchanges.values():
            self.apply_to_exchange(exchange)

    def apply_to_queue(self, queue: Queue) -> None:
        """Have a queue go by its arguments and its policies."""
        arguments = queue.declared_arguments
        definition = merge_definitions(*self.queue_policies(queue))
        if definition:
            arguments = effective_arguments(arguments, queue.raw_arguments, definition)
        if arguments != queue.arguments:
            queue.reconfigure(arguments)

    def apply_to_exchange(self, exchange: Exchange) -> None:
        """Have an exchange go by its arguments and its policies."""
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


def queue_type(queue: Queue) -> str:
    """`classic`, `quorum` or `stream`."""
    declared = argument_fields(queue.raw_arguments).get("x-queue-type")
    return str(declared.value) if declared is not None else "classic"


def applies(policy: Policy, queue_type: str) -> bool:
    """Whether a policy is meant for queues of a type; for exchanges, if that is empty."""
    if not queue_type:
        return policy.apply_to in EXCHANGES
    if policy.apply_to not in ALL_QUEUES and policy.apply_to != QUEUES_OF[queue_type]:
        return False
    return not UNSUPPORTED_KEYS[queue_type] & policy.definition.keys()


def merge_definitions(policy: Policy | None, operator: Policy | None) -> Definition:
    """The settings of both: of two numbers the smaller, else the operator's."""
    if operator is None:
        return policy.definition if policy is not None else {}
    if policy is None:
        return operator.definition
    both = dict(policy.definition)
    for key, bound in operator.definition.items():
        own = both.get(key, bound)
        if key in LEAST and isinstance(own, int) and isinstance(bound, int):
            bound = LEAST[key](own, bound)
        both[key] = bound
    return both


# -- what was declared, and what policies add


def lesser(first: int, second: int) -> int:
    return min(first, second)


def lesser_limit(first: int, second: int) -> int:
    """Of two delivery limits, of which a negative one is none."""
    return max(first, second) if first < 0 or second < 0 else min(first, second)


LEAST: Final[Mapping[str, Callable[[int, int], int]]] = {
    "expires": lesser,
    "message-ttl": lesser,
    "max-length": lesser,
    "max-length-bytes": lesser,
    "max-in-memory-length": lesser,
    "max-in-memory-bytes": lesser,
    "consumer-timeout": lesser,
    "stream-max-segment-size-bytes": lesser,
    "delivery-limit": lesser_limit,
}
"""The settings that are numbers, and which of two counts."""

NUMBERS: Final = {key: key.replace("-", "_") for key in LEAST if not key.startswith("max-in-memory")}
"""Those with an effect, and the field of QueueArguments that has it; -1 there is no limit."""

NAMES: Final = {
    "dead-letter-exchange": "dead_letter_exchange",
    "dead-letter-routing-key": "dead_letter_routing_key",
}


def stream_changes(definition: Definition) -> dict[str, object]:
    """What policies set for a stream: they go before its arguments (policy_precedence in rabbit_stream_queue)."""
    changes: dict[str, object] = {}
    for key in ("max-length-bytes", "stream-max-segment-size-bytes"):
        value = definition.get(key)
        if isinstance(value, int):
            changes[NUMBERS[key]] = value
    age = definition.get("max-age")
    if isinstance(age, str):
        changes["max_age_ms"] = parse_interval_ms(age.encode("utf-8", "surrogateescape"))
    return changes


def effective_arguments(declared: QueueArguments, raw: bytes, definition: Definition) -> QueueArguments:
    """The arguments that a queue goes by.

    :param raw: the encoded arguments: they tell what was declared from what is a default.
    """
    given = argument_fields(raw)
    changes: dict[str, object] = {}
    for key, name in NUMBERS.items():
        value = definition.get(key)
        if isinstance(value, int):
            own = getattr(declared, name)
            changes[name] = LEAST[key](own, value) if f"x-{key}" in given else value
    for key, name in NAMES.items():
        value = definition.get(key)
        if isinstance(value, str) and f"x-{key}" not in given:
            changes[name] = value.encode("utf-8", "surrogateescape")
    value = definition.get("overflow")
    if isinstance(value, str) and "x-overflow" not in given:
        changes["overflow"] = Overflow(value)
    mode = definition.get("queue-mode")
    if mode is not None and "x-queue-mode" not in given:
        changes["lazy"] = mode == "lazy"
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
