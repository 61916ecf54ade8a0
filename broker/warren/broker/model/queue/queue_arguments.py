"""Optional arguments of classic and quorum queues: parsing, checks with RabbitMQ's error texts, comparison.

Source: https://www.rabbitmq.com/docs/queues#optional-arguments and RabbitMQ's checks of them (rabbit_amqqueue).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from warren.broker.model import argument_checks
from warren.broker.model.argument_checks import InvalidValue, Overflow, argument_fields, format_value
from warren.broker.model.deduplication import ARGUMENTS as DEDUPLICATION
from warren.broker.model.deduplication import DeduplicationRule, InvalidArgument, deduplication_rule
from warren.wire.field_tables import Field
from warren.wire.methods import LONGEST_SHORT_STRING
from warren.wire.reply_codes import AmqpError, Reply

logger = logging.getLogger(__name__)

DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
DEAD_LETTER_KEY = "x-dead-letter-routing-key"
QUORUM_DELIVERY_LIMIT = 20
"""Delivery limit of a quorum queue that is declared without one, as since RabbitMQ 4.0."""


@dataclass(frozen=True)
class QueueArguments:
    """Optional arguments of a queue, parsed and checked. Times are in milliseconds; -1 stands for no limit."""

    quorum: bool = False
    message_ttl: int = -1
    expires: int = -1
    max_length: int = -1
    max_length_bytes: int = -1
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: bytes | None = None
    dead_letter_routing_key: bytes | None = None
    at_least_once: bool = False
    """True if a dead letter stays pending until its target queues accept it (x-dead-letter-strategy at-least-once).

    As in RabbitMQ, this requires x-overflow reject-publish.
    """
    delivery_limit: int = -1
    max_priority: int = -1
    single_active_consumer: bool = False
    lazy: bool = False
    """True if message contents are paged out to disk as soon as messages arrive (x-queue-mode lazy)."""
    consumer_timeout: int = -1
    """Milliseconds that a delivered message may stay unacknowledged; 0 is no limit, -1 the broker's default."""
    delayed_retry: str = "disabled"
    """Kind of requeued messages that are delayed: `disabled` (none), `all`, `failed` or `returned`.

    A message is `failed` if its channel ended or basic.reject requeued it, else `returned`.
    """
    delayed_retry_min: int = -1
    delayed_retry_max: int = -1
    deduplication: DeduplicationRule | None = None
    """Settings by which the queue drops duplicates; None if it does not."""
    stream: bool = False
    max_age_ms: int = -1
    """Milliseconds after which a stream may remove messages (x-max-age); -1 is no limit."""
    stream_max_segment_size_bytes: int = -1
    stream_filter_size_bytes: int = -1
    """Size of the Bloom filters of a stream in RabbitMQ; without an effect."""

    @property
    def type_name(self) -> str:
        """Type of the queue: `classic`, `quorum` or `stream`."""
        return "stream" if self.stream else "quorum" if self.quorum else "classic"


QUORUM_ONLY = (
    "x-delivery-limit",
    "x-consumer-timeout",
    "x-delayed-retry-type",
    "x-delayed-retry-min",
    "x-delayed-retry-max",
)
"""Arguments that in RabbitMQ only quorum queues may have. In Warren classic queues may have them as well."""

COMMON = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-leader-locator",
    *QUORUM_ONLY,
    *DEDUPLICATION,
)
CLASSIC = ("x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator")
QUORUM = (
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-quorum-initial-group-size",
    "x-consumer-disconnected-timeout",
)
STREAM = (
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
)
"""Arguments that streams may have. COMMON, CLASSIC and QUORUM hold those of the other types.

An argument that is in none of them is ignored. Unlike in RabbitMQ, a classic queue may have a delivery limit, delayed
retries and a consumer timeout, so that no message is requeued for ever, or held for ever by a consumer that hangs.
"""

OTHER_TYPES = {
    False: (*QUORUM, *STREAM, "x-dead-letter-strategy"),
    True: (*CLASSIC, *STREAM),
}
"""Arguments that are refused because they belong to another queue type.

The key is True for a quorum queue, False for a classic queue.
"""

_EQUIVALENCE = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-quorum-initial-group-size",
    "x-queue-leader-locator",
    "x-queue-master-locator",
    "x-consumer-disconnected-timeout",
    *QUORUM_ONLY,
    *DEDUPLICATION,
)
EQUIVALENCE_ARGUMENTS = {
    quorum: tuple(name for name in _EQUIVALENCE if name not in others)
    for quorum, others in OTHER_TYPES.items()
}
"""Arguments that a redeclaration has to repeat with the same values, in RabbitMQ's order of comparison.

The error names the first that differs. The key is True for a quorum queue, False for a classic queue. As in RabbitMQ, a
redeclaration may have arguments that only other types have; the first declaration may not.
"""

DEFAULT_TYPE = "classic"
"""Type of a queue that is declared without x-queue-type."""


class _Rule(NamedTuple):
    """Rule by which one argument is read.

    :ivar check: returns the value of the argument, also if it is missing; raises `InvalidValue` for an invalid one.
    :ivar field: field of `QueueArguments` that gets the value; empty for an argument without an effect.
    :ivar kind: type of the queues for which the argument is read, `classic` or `quorum`; empty for both.
    """

    name: str
    check: Callable[[Field | None], object]
    field: str = ""
    kind: str = ""


def _is_quorum(field: Field | None) -> bool:
    names = ("classic", "quorum")
    return argument_checks.one_of(field, names, "\"unsupported queue type '{}'\"") == "quorum"


_RULES = (
    _Rule("x-queue-type", _is_quorum, "quorum"),
    _Rule("x-expires", argument_checks.expiry_ms, "expires"),
    _Rule("x-message-ttl", argument_checks.duration_ms, "message_ttl"),
    _Rule(DEAD_LETTER_EXCHANGE, argument_checks.short_string, "dead_letter_exchange"),
    _Rule(DEAD_LETTER_KEY, argument_checks.short_string, "dead_letter_routing_key"),
    _Rule("x-dead-letter-strategy", argument_checks.dead_letter_strategy, "at_least_once", "quorum"),
    _Rule("x-max-length", argument_checks.non_negative, "max_length"),
    _Rule("x-max-length-bytes", argument_checks.non_negative, "max_length_bytes"),
    _Rule("x-max-in-memory-length", argument_checks.non_negative, kind="quorum"),
    _Rule("x-max-in-memory-bytes", argument_checks.non_negative, kind="quorum"),
    _Rule("x-max-priority", argument_checks.max_priority, "max_priority", "classic"),
    _Rule("x-overflow", argument_checks.overflow, "overflow"),
    _Rule("x-queue-mode", argument_checks.queue_mode, "lazy", "classic"),
    _Rule("x-queue-version", argument_checks.queue_version, kind="classic"),
    _Rule("x-single-active-consumer", argument_checks.boolean, "single_active_consumer"),
    _Rule("x-consumer-timeout", argument_checks.non_negative, "consumer_timeout"),
    _Rule("x-consumer-disconnected-timeout", argument_checks.non_negative, kind="quorum"),
    _Rule("x-quorum-initial-group-size", argument_checks.positive, kind="quorum"),
    _Rule("x-queue-leader-locator", argument_checks.leader_locator),
    _Rule(
        "x-delivery-limit", partial(argument_checks.delivery_limit, default=-1), "delivery_limit", "classic"
    ),
    _Rule(
        "x-delivery-limit",
        partial(argument_checks.delivery_limit, default=QUORUM_DELIVERY_LIMIT),
        "delivery_limit",
        "quorum",
    ),
    _Rule("x-delayed-retry-type", argument_checks.retry_type, "delayed_retry"),
    _Rule("x-delayed-retry-min", argument_checks.positive, "delayed_retry_min"),
    _Rule("x-delayed-retry-max", argument_checks.positive, "delayed_retry_max"),
)
"""Arguments of classic and quorum queues, in the order in which RabbitMQ reads them: errors name the first invalid one."""


def queue_arguments(
    raw: bytes, described: str, *, takes_any_retries: bool = False, is_restored: bool = False
) -> QueueArguments:
    """Parse and check the encoded argument table of a queue.declare.

    The arguments are read in RabbitMQ's order, which decides which of several invalid ones an error names.

    :param described: the queue as error texts name it, `queue 'q' in vhost '/'`.
    :param takes_any_retries: True to take any values of x-delayed-retry-*, as RabbitMQ 4.3 does; invalid ones then have
        no effect.
    :param is_restored: True for a queue of the data folder, which an earlier version may have accepted. A dead letter
        routing key that is too long then has no effect, and such a dead letter exchange does not exist.
    :raises AmqpError: 406 with RabbitMQ's text for an invalid argument, 502 for a malformed table.
    """
    fields = argument_fields(raw)
    if is_stream(fields):
        from warren.broker.model.stream.stream_arguments import stream_arguments

        return stream_arguments(fields, described, is_restored=is_restored)
    name = ""
    values: dict[str, Any] = {}
    try:
        for rule in _RULES:
            if rule.kind and (rule.kind == "quorum") != values["quorum"]:
                continue
            name = rule.name
            value = _read(rule, fields.get(name), described, takes_any_retries, is_restored)
            if name == DEAD_LETTER_KEY and value is not None and values["dead_letter_exchange"] is None:
                raise InvalidValue("routing_key_but_no_dlx_defined")
            if rule.field:
                values[rule.field] = value
        if 0 <= values["delayed_retry_max"] < values["delayed_retry_min"] and not takes_any_retries:
            raise InvalidValue("delayed_retry_max_below_min")
        values["deduplication"] = deduplication_rule(fields)
    except InvalidArgument as invalid:
        raise _invalid(invalid.name, described, invalid) from None
    except InvalidValue as reason:
        raise _invalid(name, described, reason) from None
    _refuse_other_types(fields, values["quorum"], described)
    return _with_effect(values, described)


def _read(
    rule: _Rule, field: Field | None, described: str, takes_any_retries: bool, is_restored: bool
) -> object:
    """Return the value of an argument.

    :raises InvalidValue: if it is invalid.
    :raises AmqpError: 406 if it names a dead letter exchange and is no string.
    """
    if rule.name == DEAD_LETTER_EXCHANGE and not is_restored:
        return argument_checks.exchange_name(field, rule.name, described)
    if is_restored and rule.name in (DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY):
        value = argument_checks.string(field)
        is_ignored = rule.name == DEAD_LETTER_KEY and value is not None and len(value) > LONGEST_SHORT_STRING
        return None if is_ignored else value
    try:
        return rule.check(field)
    except InvalidValue:
        if takes_any_retries and rule.name.startswith("x-delayed-retry-"):
            return rule.check(None)
        raise


def _invalid(name: str, described: str, reason: Exception) -> AmqpError:
    """Return the channel error 406 for an invalid argument, with RabbitMQ's text."""
    return AmqpError(Reply.PRECONDITION_FAILED, f"invalid arg '{name}' for {described}: {reason}")


def _with_effect(values: dict[str, Any], described: str) -> QueueArguments:
    """Return the arguments of a queue with the effect that they have together.

    :param values: values of the fields of `QueueArguments`, each valid by itself.
    """
    if values["quorum"] and values["overflow"] is Overflow.REJECT_PUBLISH_DLX:
        # RabbitMQ accepts this mode for a quorum queue and ignores it.
        logger.warning(
            "event=queue.overflow_ignored queue=%r overflow=%s", described, values["overflow"].value
        )
        values["overflow"] = Overflow.DROP_HEAD
    values["at_least_once"] = (
        values.get("at_least_once", False)
        and values["dead_letter_exchange"] is not None
        and values["overflow"] is Overflow.REJECT_PUBLISH
    )
    if values["delayed_retry_min"] < 0:
        values["delayed_retry"] = "disabled"
    if values["delayed_retry_max"] < 0:
        values["delayed_retry_max"] = values["delayed_retry_min"]
    return QueueArguments(**values)


def refuse_transient(
    arguments: QueueArguments, name: bytes, described: str, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Refuse a quorum queue or stream that is declared as server-named, auto-delete, exclusive or not durable.

    Source: https://www.rabbitmq.com/docs/quorum-queues#feature-matrix.

    :param described: the queue as error texts name it, `queue 'q' in vhost '/'`.
    :raises AmqpError: 406 for such a queue.
    """
    if not name:
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"Cannot declare a server-named queue for type rabbit_{arguments.type_name}_queue",
        )
    for is_set, flag in (
        (auto_delete, "auto-delete"),
        (exclusive, "exclusive-owner"),
        (not durable, "non-durable"),
    ):
        if is_set:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"invalid property '{flag}' for {described}")


def queue_type(raw: bytes) -> str:
    """Return the queue type that a declaration asks for: x-queue-type, or the default.

    :param raw: the encoded arguments of the declaration.
    """
    field = argument_fields(raw).get("x-queue-type")
    return DEFAULT_TYPE if field is None else str(field.value)


def is_stream(fields: dict[str, Field]) -> bool:
    """Return True if x-queue-type among these arguments is `stream`.

    :param fields: the decoded arguments, by name.
    """
    kind = fields.get("x-queue-type")
    return kind is not None and kind.kind == "S" and kind.value == "stream"


def _refuse_other_types(fields: dict[str, Field], quorum: bool, described: str) -> None:
    for name in fields:
        if name in OTHER_TYPES[quorum]:
            raise _of_another_type(name, described, quorum)


def _of_another_type(name: str, described: str, quorum: bool) -> AmqpError:
    kind = "quorum" if quorum else "classic"
    return AmqpError(
        Reply.PRECONDITION_FAILED, f"invalid arg '{name}' for {described} of queue type rabbit_{kind}_queue"
    )


def check_equivalence(required: bytes, current: bytes, names: tuple[str, ...], described: str) -> None:
    """Check that the redeclaration of a queue or exchange has the same arguments as the existing one.

    :param required: the encoded arguments of the redeclaration.
    :param current: the encoded arguments of the existing queue or exchange.
    :param names: the arguments that have to be the same, in the order of comparison.
    :param described: the object as error texts name it, `queue 'q' in vhost '/'`.
    :raises AmqpError: 406 that names the first argument that differs.
    """
    given, have = argument_fields(required), argument_fields(current)
    for name in names:
        new, old = given.get(name), have.get(name)
        if not _same(name, new, old):
            if new is not None and old is not None:
                both = f"received '{format_value(new)}' but current is '{format_value(old)}'"
            else:
                both = f"received {_received(new)} but current is {_received(old)}"
            raise AmqpError(Reply.PRECONDITION_FAILED, f"inequivalent arg '{name}' for {described}: {both}")


def _same(name: str, new: Field | None, old: Field | None) -> bool:
    if new is None or old is None:
        given = new or old
        return given is None or (name == "x-queue-type" and given.value == DEFAULT_TYPE)
    if new.is_integer and old.is_integer:
        return new.value == old.value
    return new.kind == old.kind and new.value == old.value


def _received(field: Field | None) -> str:
    if field is None:
        return "none"
    return f"the value '{format_value(field)}' of type '{field.type_name}'"


def consumer_priority(raw: bytes, quorum: bool, described: str) -> int:
    """Return the priority of a consumer: the argument x-priority of its basic.consume, or 0.

    :param raw: the encoded arguments of the basic.consume.
    :param quorum: True if the queue is a quorum queue.
    :param described: the queue as error texts name it, `queue 'q' in vhost '/'`.
    :raises AmqpError: 406 if it is no integer, or if there is an argument for consumers of a stream.
    """
    fields = argument_fields(raw)
    field = fields.get("x-priority")
    try:
        priority = 0 if field is None else argument_checks.integer(field)
    except InvalidValue as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg 'x-priority' for {described}: {reason}"
        ) from None
    for name in fields:
        if name in ("x-stream-offset", "x-warren-filter"):
            raise _of_another_type(name, described, quorum)
    return priority
