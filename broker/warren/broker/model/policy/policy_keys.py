"""Checks of policies: the keys and values of their definitions, with RabbitMQ's texts for invalid ones.

Source: RabbitMQ's rabbit_policy, rabbit_policies and, for `ha-*`, rabbit_mirror_queue_misc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.model.stream.interval_format import parse_interval_ms
from warren.core.name_pattern import InvalidPattern, NamePattern

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

APPLY_TO: Final = ("queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all")
PATTERN_LIMIT: Final = 1024
"""Longest pattern of a policy in bytes. It is limited because it is matched against the name of every object."""

UNSUPPORTED_KEYS: Final = {
    "classic": frozenset(
        (
            "max-age",
            "stream-max-segment-size-bytes",
            "stream-filter-size-bytes",
            "initial-cluster-size",
            "dead-letter-strategy",
            "max-in-memory-length",
            "max-in-memory-bytes",
            "target-group-size",
        )
    ),
    "quorum": frozenset(
        (
            "queue-mode",
            "ha-mode",
            "ha-params",
            "ha-sync-mode",
            "ha-promote-on-shutdown",
            "ha-promote-on-failure",
            "max-age",
            "stream-max-segment-size-bytes",
            "stream-filter-size-bytes",
            "initial-cluster-size",
        )
    ),
    "stream": frozenset(
        (
            "expires",
            "message-ttl",
            "dead-letter-exchange",
            "dead-letter-routing-key",
            "dead-letter-strategy",
            "max-length",
            "max-in-memory-length",
            "max-in-memory-bytes",
            "overflow",
            "queue-mode",
            "delivery-limit",
            "ha-mode",
            "ha-params",
            "ha-sync-mode",
            "ha-promote-on-shutdown",
            "ha-promote-on-failure",
            "target-group-size",
        )
    ),
}
"""For each queue type the policy keys that it does not support.

A policy with one of these keys applies to no queue of the type, as in RabbitMQ. Unlike in RabbitMQ, a policy may set
the delivery limit of classic queues, so that no message is requeued for ever, unless portability checks are strict.
"""


class InvalidPolicy(ValueError):
    """A policy is invalid. The text is RabbitMQ's."""


Check: TypeAlias = Callable[[Json], bool]


def _integer(least: int | None = 0, most: int | None = None) -> Check:
    def check(value: Json) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return (least is None or value >= least) and (most is None or value <= most)

    return check


def _one_of(*words: Json) -> Check:
    return lambda value: not isinstance(value, bool) and value in words


def _text(value: Json) -> bool:
    return isinstance(value, str)


def _age(value: Json) -> bool:
    return isinstance(value, str) and parse_interval_ms(value.encode("utf-8", "surrogateescape")) > 0


RETRY_TYPES: Final = ("all", "failed", "returned", "disabled")
"""Values of delayed-retry-type: which requeues of a message delay it."""

SETTINGS: Final[Mapping[str, tuple[Check, str]]] = {
    "alternate-exchange": (_text, "alternate exchange name"),
    "consumer-disconnected-timeout": (_integer(), "consumer disconnected timeout"),
    "consumer-timeout": (_integer(), "consumer timeout"),
    "dead-letter-exchange": (_text, "dead letter exchange name"),
    "dead-letter-routing-key": (_text, "dead letter routing key"),
    "dead-letter-strategy": (_one_of("at-most-once", "at-least-once"), "dead letter strategy"),
    "delayed-retry-max": (_integer(1), "delayed retry maximum delay. Must be a positive integer"),
    "delayed-retry-min": (_integer(1), "delayed retry minimum delay. Must be a positive integer"),
    "delayed-retry-type": (
        _one_of(*RETRY_TYPES),
        f"delayed retry type. Must be one of: {', '.join(RETRY_TYPES)}",
    ),
    "delivery-limit": (_integer(None), "delivery limit"),
    "expires": (_integer(1), "queue expiry"),
    "initial-cluster-size": (_integer(), "cluster size"),
    "max-age": (_age, "max age"),
    "max-in-memory-bytes": (_integer(), "maximum memory in bytes"),
    "max-in-memory-length": (_integer(), "maximum memory in bytes"),
    "max-length": (_integer(), "maximum length"),
    "max-length-bytes": (_integer(), "maximum length in bytes"),
    "message-ttl": (_integer(), "message TTL"),
    "overflow": (_one_of("drop-head", "reject-publish", "reject-publish-dlx"), "overflow value"),
    "queue-leader-locator": (
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "queue leader locator value",
    ),
    "queue-mode": (_one_of("default", "lazy"), "queue-mode value"),
    "queue-version": (_one_of(1, 2), "queue-version value"),
    "stream-filter-size-bytes": (_integer(16, 255), "filter size. Valid range is 16-255"),
    "stream-max-segment-size-bytes": (_integer(0, 3_000_000_000), "segment size"),
    "target-group-size": (_integer(1), "qq target count value"),
}
"""Check of the value of each policy key, and what an error text calls it.

Without an effect on a single node: the keys of the members of quorum queues and streams, and of consumers that are
disconnected from their queue.
"""

DEAD_LETTER_KEY: Final = "dead-letter-routing-key"
NAME_KEYS: Final = ("alternate-exchange", "dead-letter-exchange", DEAD_LETTER_KEY)
"""Policy keys whose values are names of exchanges or routing keys, which AMQP limits to 255 bytes."""

HA_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "ha-sync-mode": ("manual", "automatic"),
    "ha-promote-on-shutdown": ("always", "when-synced"),
    "ha-promote-on-failure": ("always", "when-synced"),
}
HA_KEYS: Final = frozenset((*HA_SETTINGS, "ha-mode", "ha-params", "ha-sync-batch-size"))
"""Policy keys of mirrored queues. They are stored and listed, without an effect on a single node."""

OPERATOR: Final = frozenset(
    (
        "expires",
        "message-ttl",
        "max-length",
        "max-length-bytes",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "delayed-retry-max",
        "delayed-retry-min",
        "delayed-retry-type",
        "delivery-limit",
        "queue-version",
        "overflow",
        "target-group-size",
    )
)
"""Policy keys that an operator policy may have."""


def check_policy(pattern: Json, apply_to: Json, priority: Json, definition: Json, operator: bool) -> None:
    """Check the fields of a policy as RabbitMQ does.

    :param operator: True for an operator policy, which may have fewer keys.
    :raises InvalidPolicy: with RabbitMQ's text.
    """
    check_definition(definition, operator)
    if apply_to not in APPLY_TO:
        raise InvalidPolicy(
            f"apply-to '{apply_to if isinstance(apply_to, str) else format_term(apply_to)}' unrecognised; should be one of: "
            f"{', '.join(repr(word) for word in APPLY_TO[:-1])}, or 'all'"
        )
    if not isinstance(pattern, str):
        raise InvalidPolicy(f"pattern should be a binary but was {format_term(pattern)}")
    if len(pattern.encode("utf-8", "surrogateescape")) > PATTERN_LIMIT:
        raise InvalidPolicy(f"pattern must not exceed {PATTERN_LIMIT} bytes")
    try:
        NamePattern(pattern)
    except InvalidPattern as reason:
        raise InvalidPolicy(f"pattern should be regular expression but is invalid: {reason}") from None
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise InvalidPolicy(f"priority should be a number, actually was {format_term(priority)}")


def check_definition(definition: Json, operator: bool) -> None:
    """Check the keys and values of a policy's definition.

    :param operator: True for an operator policy, which may have fewer keys.
    :raises InvalidPolicy: with RabbitMQ's text.
    """
    if not isinstance(definition, dict):
        raise InvalidPolicy(f"definition must be a dictionary: {format_term(definition)}")
    if not definition:
        raise InvalidPolicy("no policy provided")
    known = OPERATOR if operator else SETTINGS.keys() | HA_KEYS
    for key in sorted(definition.keys() & known & SETTINGS.keys()):
        check, what = SETTINGS[key]
        if not check(definition[key]):
            raise InvalidPolicy(f"{format_term(definition[key])} is not a valid {what}")
    check_retries(definition)
    if not operator and definition.keys() & HA_KEYS:
        check_mirroring(definition)
    unknown = definition.keys() - known
    if unknown:
        shown = format_settings({key: definition[key] for key in unknown})
        raise InvalidPolicy(f"{shown} are not recognised policy settings")


def check_names(definition: dict[str, Json]) -> None:
    """Check that the names and the routing key in the definition of a new policy are not longer than AMQP allows.

    RabbitMQ takes such a policy, and later closes the connections of the clients that it should deliver a dead letter to.
    A policy of the data folder is not checked in this way, because an earlier version may have accepted it.

    :raises InvalidPolicy: for the first that is longer.
    """
    for key in NAME_KEYS:
        size = name_size(definition.get(key))
        if size > LONGEST_NAME:
            raise InvalidPolicy(f"{key} should be at most {LONGEST_NAME} bytes, actually was {size}")


def name_size(value: Json) -> int:
    """Return the size of a name or a routing key in bytes, as AMQP transfers it; 0 for a value that is no text."""
    return len(value.encode("utf-8", "surrogateescape")) if isinstance(value, str) else 0


def check_retries(definition: dict[str, Json]) -> None:
    """Check that the policy keys of delayed retries fit together, as rabbit_quorum_queue does. Each is valid by itself.

    :raises InvalidPolicy: with RabbitMQ's text.
    """
    kind, least, most = (definition.get(f"delayed-retry-{name}") for name in ("type", "min", "max"))
    if kind not in (None, "disabled") and least is None:
        raise InvalidPolicy(f"delayed-retry-min is required when delayed-retry-type is {kind}")
    if isinstance(least, int) and isinstance(most, int) and most < least:
        raise InvalidPolicy(
            f"delayed-retry-max ({most}) must not be smaller than delayed-retry-min ({least})"
        )


def check_mirroring(definition: dict[str, Json]) -> None:
    """Check the policy keys of mirrored queues (`ha-*`) as rabbit_mirror_queue_misc does.

    :param definition: the policy's settings by key, of which at least one is an `ha-*` key.
    :raises InvalidPolicy: with RabbitMQ's text.
    """
    mode, params = definition.get("ha-mode"), definition.get("ha-params")
    shown = "none" if "ha-params" not in definition else format_term(params)
    if "ha-mode" not in definition:
        raise InvalidPolicy(
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
        )
    if mode == "all":
        if "ha-params" in definition:
            raise InvalidPolicy(f'ha-mode="all" does not take parameters, {shown} given')
    elif mode == "exactly":
        if not _integer(1)(params):
            raise InvalidPolicy(f'ha-mode="exactly" takes an integer, {shown} given')
    elif mode == "nodes":
        if not isinstance(params, list) or not params or not all(isinstance(node, str) for node in params):
            raise InvalidPolicy(f'ha-mode="nodes" takes a list of strings, {shown} given')
    else:
        raise InvalidPolicy(f"{format_term(mode)} is not a valid ha-mode value")
    for key, words in HA_SETTINGS.items():
        if key in definition and definition[key] not in words:
            raise InvalidPolicy(
                f'{key} must be "{words[0]}" or "{words[1]}", got {format_term(definition[key])}'
            )
    if "ha-sync-batch-size" in definition and not _integer(1)(definition["ha-sync-batch-size"]):
        raise InvalidPolicy(
            f"ha-sync-batch-size takes an integer, {format_term(definition['ha-sync-batch-size'])} given"
        )


def format_settings(definition: dict[str, Json]) -> str:
    """Format keys and values of a policy or of limits as RabbitMQ's error texts do: `[{<<"key">>,1}]`."""
    pairs = (f"{{{format_term(key)},{format_term(value)}}}" for key, value in sorted(definition.items()))
    return f"[{','.join(pairs)}]"


def format_term(value: Json) -> str:
    """Format a JSON value as an Erlang term, as RabbitMQ's error texts do."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'<<"{value}">>' if value.isascii() else f'<<"{value}"/utf8>>'
    if isinstance(value, list):
        return f"[{','.join(format_term(item) for item in value)}]"
    if isinstance(value, dict):
        return (
            "#{"
            + ",".join(f"{format_term(key)} => {format_term(item)}" for key, item in sorted(value.items()))
            + "}"
        )
    return str(value)
