"""Definition of a shovel, the value of its runtime parameter: its keys, checks and RabbitMQ's error texts.

https://www.rabbitmq.com/docs/shovel-dynamic. The checks and their order are those of RabbitMQ's module
rabbit_shovel_parameters and of the modules of its protocols.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from warren.broker.model import argument_checks
from warren.broker.model.argument_checks import InvalidValue
from warren.broker.model.operator_errors import OperationRefused
from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.model.stream.interval_format import parse_interval_ms
from warren.broker.model.stream.stream_arguments import OFFSET, parse_offset_specification
from warren.broker.shovel.shovel_uri import InvalidUri, ShovelUri, parse_uri
from warren.core.erlang_terms import Term, format_term
from warren.wire import field_tables
from warren.wire.field_tables import Field
from warren.wire.reply_codes import AmqpError

Json: TypeAlias = Any

AMQP091: Final = "amqp091"
LOCAL: Final = "local"
AMQP10: Final = "amqp10"
PROTOCOLS: Final = (AMQP091, AMQP10, LOCAL)
"""RabbitMQ's names of the protocols, of which `amqp10` is not supported."""
DEFAULT_PREFETCH: Final = 1000
DEFAULT_RECONNECT_DELAY: Final = 5
DELETE_AFTER_FLOOR: Final = 60
"""Shortest time in seconds after which a shovel with `src-delete-after-duration` deletes itself, as in RabbitMQ."""
LONGEST_DURATION: Final = argument_checks.MAX_EXPIRY_MS // 1000
"""Largest `src-delete-after-duration` in seconds."""
QUEUE_LENGTH: Final = -1
"""Value of `Source.delete_after` for the number of messages in the queue when the shovel starts."""


class AckMode(Enum):
    """Time at which a message is acknowledged at the source."""

    NO_ACK = "no-ack"
    ON_PUBLISH = "on-publish"
    ON_CONFIRM = "on-confirm"


@dataclass(frozen=True)
class Source:
    """Queue or exchange that a shovel consumes from.

    :param queue: name of the queue; empty for an exclusive queue that the shovel binds to `exchange`.
    :param consumer_tag: consumer tag; empty for one that the broker makes.
    :param queue_arguments: arguments, encoded, with which the queue is declared if it does not exist.
    :param is_predeclared: True if the queue must exist, and is not declared.
    :param prefetch: messages that may be unacknowledged; 0 is no limit.
    :param delete_after: number of messages after which the shovel deletes itself, or QUEUE_LENGTH; None for never.
    :param delete_after_seconds: seconds after which the shovel deletes itself; None for never.
    """

    protocol: str
    uris: tuple[ShovelUri, ...]
    queue: bytes
    exchange: bytes
    exchange_key: bytes
    queue_arguments: bytes
    is_predeclared: bool
    consumer_tag: bytes
    consumer_arguments: bytes
    prefetch: int
    delete_after: int | None
    delete_after_seconds: int | None


@dataclass(frozen=True)
class Destination:
    """Queue or exchange that a shovel publishes to.

    :param queue: name of the queue; None to publish to an exchange.
    :param exchange: name of the exchange; None for the one that each message was published to.
    :param exchange_key: routing key; None for that of each message.
    :param properties: properties that every message gets.
    """

    protocol: str
    uris: tuple[ShovelUri, ...]
    queue: bytes | None
    exchange: bytes | None
    exchange_key: bytes | None
    queue_arguments: bytes
    is_predeclared: bool
    adds_forward_headers: bool
    adds_timestamp: bool
    properties: Mapping[str, bytes | int] = field(default_factory=dict)


@dataclass(frozen=True)
class ShovelDefinition:
    """Parsed definition of a shovel.

    :param reconnect_delay: seconds until a shovel that has failed connects again; 0 if it does not.
    """

    source: Source
    destination: Destination
    ack_mode: AckMode
    reconnect_delay: int


MayOpen: TypeAlias = Callable[[str], bool]
"""Function that returns whether a virtual host of this broker exists, and the user may open it."""
_Errors: TypeAlias = list[str]
_Check: TypeAlias = Callable[[str, Json], _Errors]


def check_definition(name: str, value: Json) -> None:
    """Check the definition of a shovel.

    :param name: name of the shovel.
    :raises OperationRefused: with RabbitMQ's errors in one line.
    """
    errors = definition_errors(name, value)
    if errors:
        raise OperationRefused("Validation failed: " + "; ".join(re.sub("\n *", "", each) for each in errors))


def definition_errors(name: str, value: Json, user: str = "", may_open: MayOpen | None = None) -> list[str]:
    """Return the errors of the definition of a shovel, in RabbitMQ's order; empty if there are none.

    :param name: name of the shovel.
    :param user: name of the user who defines it, for the error text.
    :param may_open: checks the virtual hosts of URIs without a host, which need no password; None to check nothing.
    """
    definition = {} if value == [] else value
    if not isinstance(definition, dict):
        return [f"the definition of the shovel {name} must be an object, actually was {format_term(value)}"]
    for key in ("src-protocol", "dest-protocol"):
        if definition.get(key) == AMQP10:
            return [f"{key} amqp10 is not supported: use amqp091 or local"]
    source, destination = _protocol(definition, "src-protocol"), _protocol(definition, "dest-protocol")
    uri = _uri_check(user, may_open)
    checks = {
        **GENERAL_CHECKS,
        **_source_checks(source, uri),
        **_destination_checks(destination, uri),
    }
    return [
        *_end_errors(definition),
        *_object_errors(name, definition, checks, mandatory=("src-uri", "dest-uri")),
    ]


def parse_definition(value: Json) -> ShovelDefinition:
    """Parse a definition that `check_definition` accepts."""
    definition: dict[str, Json] = value or {}

    def text(key: str) -> bytes | None:
        found = definition.get(key)
        return None if found is None else str(found).encode("utf-8", "surrogateescape")

    def first(*keys: str, default: Json) -> Json:
        return next((definition[key] for key in keys if key in definition), default)

    delete_after = first("src-delete-after", "delete-after", default="never")
    delay = definition.get("reconnect-delay", DEFAULT_RECONNECT_DELAY)
    queue = text("src-queue")
    source = Source(
        _protocol(definition, "src-protocol"),
        _uris(definition["src-uri"]),
        queue or b"",
        text("src-exchange") or b"",
        text("src-exchange-key") or b"",
        _table(definition.get("src-queue-args")),
        definition.get("src-predeclared", False),
        text("src-consumer-name") or b"",
        _table(definition.get("src-consumer-args")),
        min(max(0, int(first("src-prefetch-count", "prefetch-count", default=DEFAULT_PREFETCH))), 0xFFFF),
        QUEUE_LENGTH if delete_after == "queue-length" else None if delete_after == "never" else delete_after,
        definition.get("src-delete-after-duration"),
    )
    properties = first("dest-publish-properties", "publish-properties", default={})
    destination = Destination(
        _protocol(definition, "dest-protocol"),
        _uris(definition["dest-uri"]),
        text("dest-queue"),
        text("dest-exchange"),
        text("dest-exchange-key"),
        _table(definition.get("dest-queue-args")),
        definition.get("dest-predeclared", False),
        first("dest-add-forward-headers", "add-forward-headers", default=False),
        first("dest-add-timestamp-header", "add-timestamp-header", default=False),
        {
            key: found.encode("utf-8", "surrogateescape") if isinstance(found, str) else int(found)
            for key, found in (properties or {}).items()
        },
    )
    return ShovelDefinition(
        source,
        destination,
        AckMode(definition.get("ack-mode", AckMode.ON_CONFIRM.value)),
        delay if isinstance(delay, int) and delay > 0 else 0,
    )


def _uris(value: Json) -> tuple[ShovelUri, ...]:
    return tuple(parse_uri(text) for text in ([value] if isinstance(value, str) else value))


def _protocol(definition: dict[str, Json], key: str) -> str:
    found = definition.get(key)
    return LOCAL if found == LOCAL else AMQP091


# -- checks of several keys


def _end_errors(definition: dict[str, Json]) -> _Errors:
    errors = []
    sources = sum(key in definition for key in ("src-exchange", "src-queue"))
    if sources == 0:
        errors.append("Must specify 'src-exchange' or 'src-queue'")
    elif sources == 2:
        errors.append("Cannot specify 'src-exchange' and 'src-queue'")
    delete_after = definition.get("src-delete-after", definition.get("delete-after"))
    if _is_integer(delete_after) and definition.get("ack-mode") == AckMode.NO_ACK.value:
        errors.append("Cannot specify 'no-ack' and numerical 'delete-after'")
    if "dest-exchange" in definition and "dest-queue" in definition:
        errors.append("Cannot specify 'dest-exchange' and 'dest-queue'")
    return errors


def _object_errors(
    name: str, found: Json, checks: Mapping[str, _Check], mandatory: Iterable[str] = ()
) -> _Errors:
    """Return the errors of an object, as RabbitMQ collects them: unknown keys first, then the last check first."""
    if not isinstance(found, dict):
        return [f"{name} not a list {format_term(found)}"]
    results: list[_Errors] = []
    for key, check in checks.items():
        if key in found:
            results.append(check(key, found[key]))
        elif key in mandatory:
            results.append([f'Key "{key}" not found in {name}'])
    unknown: list[Term] = [(key, found[key]) for key in sorted(found) if key not in checks]
    if unknown:
        text = "Unrecognised terms "
        results.append([f"{text}{format_term(unknown, len(text))} in {name}"])
    return [error for result in reversed(results) for error in result]


# -- checks of single keys


def _is_integer(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _should_be(what: str) -> Callable[[str, Json], str]:
    def describe(key: str, value: Json) -> str:
        text = f"{key} should be {what}, actually was "
        return text + format_term(value, len(text))

    return describe


def _typed(what: str, accepts: Callable[[Json], bool]) -> _Check:
    describe = _should_be(what)
    return lambda key, value: [] if accepts(value) else [describe(key, value)]


_text = _typed("binary", lambda value: isinstance(value, str))
_number = _typed("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
_boolean = _typed("boolean", lambda value: isinstance(value, bool))


def _one_of(options: Iterable[str]) -> _Check:
    listed = list(options)

    def check(key: str, value: Json) -> _Errors:
        if not isinstance(value, str):
            return _text(key, value)
        if value in listed:
            return []
        return [_should_be(f"one of {format_term(listed)}")(key, value)]

    return check


def _name(key: str, value: Json) -> _Errors:
    """Check a name or a routing key. RabbitMQ checks the length of `dest-queue` only; other shovels never start."""
    errors = _text(key, value)
    size = 0 if errors else len(value.encode("utf-8", "surrogateescape"))
    if size <= LONGEST_NAME:
        return errors
    return [f"{key} should be less than {LONGEST_NAME} bytes, actually was {size}"]


def _delete_after(key: str, value: Json) -> _Errors:
    if value in ("never", "queue-length") or (_is_integer(value) and value >= 0):
        return []
    what = 'a number greater than or equal to 0, "never" or "queue-length"'
    return [_should_be(what)(key, value)]


def _delete_after_duration(key: str, value: Json) -> _Errors:
    if not _is_integer(value) or value <= 0:
        return [_should_be("a positive integer (seconds)")(key, value)]
    if value > LONGEST_DURATION:
        return [f"{key} is {value} seconds, which exceeds the maximum supported duration"]
    return []


def _uri_check(user: str, may_open: MayOpen | None) -> _Check:
    def check(key: str, value: Json) -> _Errors:
        if not isinstance(value, str):
            if not isinstance(value, list):
                return [_should_be("list")(key, value)]
            errors = [error for each in value for error in check(key, each)]
            return errors[:1]
        text = f'"{value}" not a valid URI: '
        try:
            uri = parse_uri(value)
        except InvalidUri as invalid:
            return [text + format_term(invalid.term, len(text))]
        size = len(uri.virtual_host.encode("utf-8", "surrogateescape"))
        if size > LONGEST_NAME:
            return [f"the virtual host in {key} should be at most {LONGEST_NAME} bytes, actually was {size}"]
        if uri.is_direct and may_open is not None and not may_open(uri.virtual_host):
            return [f'user "{user}" may not connect to vhost "{uri.virtual_host}"']
        return []

    return check


_ArgumentCheck: TypeAlias = Callable[[Field], object]


def _queue_type(field: Field) -> None:
    argument_checks.one_of(field, ("classic", "quorum", "stream"), "\"unsupported queue type '{}'\"")


def _max_age(field: Field) -> None:
    text = argument_checks.string(field)
    if text is not None and parse_interval_ms(text) <= 0:
        raise InvalidValue("invalid_max_age")


def _stream_offset(field: Field) -> None:
    try:
        parse_offset_specification({OFFSET: field}, "?", 0)
    except AmqpError as error:
        raise InvalidValue(error.explanation.partition(" for ?: ")[2]) from None


QUEUE_ARGUMENTS: Final[dict[str, _ArgumentCheck]] = {
    "x-expires": argument_checks.expiry_ms,
    "x-message-ttl": argument_checks.duration_ms,
    "x-dead-letter-exchange": argument_checks.short_string,
    "x-dead-letter-routing-key": argument_checks.short_string,
    "x-dead-letter-strategy": argument_checks.dead_letter_strategy,
    "x-max-length": argument_checks.non_negative,
    "x-max-length-bytes": argument_checks.non_negative,
    "x-max-in-memory-length": argument_checks.non_negative,
    "x-max-in-memory-bytes": argument_checks.non_negative,
    "x-max-priority": argument_checks.max_priority,
    "x-overflow": argument_checks.overflow,
    "x-queue-version": argument_checks.queue_version,
    "x-single-active-consumer": argument_checks.boolean,
    "x-consumer-timeout": argument_checks.non_negative,
    "x-consumer-disconnected-timeout": argument_checks.non_negative,
    "x-queue-type": _queue_type,
    "x-quorum-initial-group-size": argument_checks.positive,
    "x-max-age": _max_age,
    "x-stream-max-segment-size-bytes": argument_checks.non_negative,
    "x-stream-filter-size-bytes": argument_checks.non_negative,
    "x-initial-cluster-size": argument_checks.positive,
    "x-queue-leader-locator": argument_checks.leader_locator,
}
CONSUMER_ARGUMENTS: Final[dict[str, _ArgumentCheck]] = {
    "x-priority": argument_checks.integer,
    "x-consumer-timeout": argument_checks.non_negative,
    OFFSET: _stream_offset,
}


def _argument(value: Json) -> Field:
    return field_tables.long_field(value) if _is_integer(value) else field_tables.field_of(value)


def _table(value: Json) -> bytes:
    return field_tables.join({name: _argument(each) for name, each in (value or {}).items()})


def _arguments(checks: Mapping[str, _ArgumentCheck]) -> _Check:
    def check(key: str, value: Json) -> _Errors:
        if not isinstance(value, dict):
            return [_should_be("an object")(key, value)]
        try:
            fields = {name: _argument(each) for name, each in value.items()}
        except ValueError as error:
            return [f"invalid arguments in {key}: {error}"]
        errors = []
        for name, check_field in checks.items():
            if name not in fields:
                continue
            try:
                check_field(fields[name])
                if name == "x-dead-letter-routing-key" and "x-dead-letter-exchange" not in fields:
                    raise InvalidValue("routing_key_but_no_dlx_defined")
            except InvalidValue as reason:
                errors.append(f"invalid arg '{name}' in {key}: {reason}")
        return errors

    return check


PROPERTY_CHECKS: Final[dict[str, _Check]] = {
    "content_type": _text,
    "content_encoding": _text,
    "delivery_mode": _number,
    "priority": _number,
    "correlation_id": _text,
    "reply_to": _text,
    "expiration": _text,
    "message_id": _text,
    "timestamp": _number,
    "type": _text,
    "user_id": _text,
    "app_id": _text,
    "cluster_id": _text,
}


def _properties(key: str, value: Json) -> _Errors:
    errors = _object_errors(key, {} if value == [] else value, PROPERTY_CHECKS)
    if errors:
        return errors
    # RabbitMQ accepts these, and then fails at each message.
    for name, most in (("delivery_mode", 2), ("priority", 255), ("timestamp", 2**63 - 1)):
        found = value.get(name, 1) if isinstance(value, dict) else 1
        if not 0 <= found <= most:
            errors.append(f"{name} should be a number from 0 to {most}, actually was {format_term(found)}")
    for name, found in value.items() if isinstance(value, dict) else ():
        if isinstance(found, str) and len(found.encode("utf-8", "surrogateescape")) > LONGEST_NAME:
            errors.append(f"{name} should be at most {LONGEST_NAME} bytes long")
    return errors


def _internal_owner(key: str, value: Json) -> _Errors:
    kinds = _one_of(("exchange", "queue"))
    return _object_errors(key, value, {"name": _text, "kind": kinds, "virtual_host": _text})


GENERAL_CHECKS: Final[dict[str, _Check]] = {
    "internal": _boolean,
    "internal_owner": _internal_owner,
    "reconnect-delay": _number,
    "ack-mode": _one_of(mode.value for mode in AckMode),
    "src-protocol": _one_of(PROTOCOLS),
    "dest-protocol": _one_of(PROTOCOLS),
}


def _source_checks(protocol: str, uri: _Check) -> dict[str, _Check]:
    checks: dict[str, _Check] = {
        "src-uri": uri,
        "src-exchange": _name,
        "src-exchange-key": _name,
        "src-queue": _name,
        "src-queue-args": _arguments(QUEUE_ARGUMENTS),
        "src-consumer-args": _arguments(CONSUMER_ARGUMENTS),
        "src-consumer-name": _name,
    }
    if protocol == AMQP091:
        checks |= {"prefetch-count": _number, "src-prefetch-count": _number, "delete-after": _delete_after}
    return checks | {
        "src-delete-after": _delete_after,
        "src-delete-after-duration": _delete_after_duration,
        "src-predeclared": _boolean,
    }


def _destination_checks(protocol: str, uri: _Check) -> dict[str, _Check]:
    checks: dict[str, _Check] = {
        "dest-uri": uri,
        "dest-exchange": _name,
        "dest-exchange-key": _name,
        "dest-queue": _name,
        "dest-queue-args": _arguments(QUEUE_ARGUMENTS),
    }
    if protocol == AMQP091:
        checks |= {"add-forward-headers": _boolean, "add-timestamp-header": _boolean}
    checks |= {"dest-add-forward-headers": _boolean, "dest-add-timestamp-header": _boolean}
    if protocol == AMQP091:
        checks |= {"publish-properties": _properties, "dest-publish-properties": _properties}
    return checks | {"dest-predeclared": _boolean}
