"""Optional arguments of classic and quorum queues: parsing, checks with RabbitMQ's error texts, comparison.

Source: https://www.rabbitmq.com/docs/queues#optional-arguments and RabbitMQ's checks of them (rabbit_amqqueue).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warren.broker.model import argument_checks
from warren.broker.model.argument_checks import InvalidValue, Overflow, argument_fields, format_value
from warren.broker.model.deduplication import ARGUMENTS as DEDUPLICATION
from warren.broker.model.deduplication import DeduplicationRule, InvalidArgument, deduplication_rule
from warren.wire.field_tables import Field
from warren.wire.methods import LONGEST_SHORT_STRING
from warren.wire.reply_codes import AmqpError, Reply

logger = logging.getLogger(__name__)

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

RETRY_CHECKS: Mapping[str, Callable[[Field | None], object]] = {
    "x-delayed-retry-type": argument_checks.retry_type,
    "x-delayed-retry-min": argument_checks.positive,
    "x-delayed-retry-max": argument_checks.positive,
}
"""Checks of the arguments of delayed retries, by name."""

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


class ArgumentReader:
    """Reader of the arguments of a queue.declare. An error names the argument that was read last.

    :param fields: the decoded arguments, by name.
    :param described: the queue as error texts name it, `queue 'q' in vhost '/'`.
    """

    def __init__(self, fields: dict[str, Field], described: str) -> None:
        self.fields = fields
        self.described = described
        self.name = ""

    def get(self, name: str) -> Field | None:
        """Return an argument; None if it is missing. An error that `error` makes later names this argument."""
        self.name = name
        return self.fields.get(name)

    def error(self, reason: Exception, name: str = "") -> AmqpError:
        """Return a channel error 406 with RabbitMQ's text.

        :param reason: the fault of the argument's value.
        :param name: the argument at fault; by default the one that was read last.
        """
        return AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg '{name or self.name}' for {self.described}: {reason}"
        )


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
    reader = ArgumentReader(fields, described)
    try:
        quorum = _is_quorum(reader.get("x-queue-type"))
        values: dict[str, Any] = {"quorum": quorum}
        values.update(_time_limits(reader))
        values.update(_dead_lettering(reader, quorum, is_restored))
        values.update(_length_limits(reader, quorum))
        values.update(_overflow_and_mode(reader, quorum))
        values.update(_consumers(reader, quorum))
        values.update(_redelivery(reader, quorum, takes_any_retries))
        values["deduplication"] = deduplication_rule(fields)
    except InvalidArgument as invalid:
        raise reader.error(invalid, invalid.name) from None
    except InvalidValue as reason:
        raise reader.error(reason) from None
    _refuse_other_types(fields, quorum, described)
    if quorum and values["overflow"] is Overflow.REJECT_PUBLISH_DLX:
        # RabbitMQ accepts this mode for a quorum queue and ignores it.
        logger.warning(
            "event=queue.overflow_ignored queue=%r overflow=%s", described, values["overflow"].value
        )
        values["overflow"] = Overflow.DROP_HEAD
    values["at_least_once"] = (
        values["at_least_once"]
        and values["dead_letter_exchange"] is not None
        and values["overflow"] is Overflow.REJECT_PUBLISH
    )
    return QueueArguments(**values)


def _time_limits(reader: ArgumentReader) -> dict[str, Any]:
    """Read x-expires and x-message-ttl. Return them as fields of `QueueArguments`, by name."""
    expires = argument_checks.duration_ms(reader.get("x-expires"))
    if expires == 0:
        raise InvalidValue("{value_zero,0}")
    return {"expires": expires, "message_ttl": argument_checks.duration_ms(reader.get("x-message-ttl"))}


def _dead_lettering(reader: ArgumentReader, quorum: bool, is_restored: bool) -> dict[str, Any]:
    """Read the dead letter exchange and routing key and, for a quorum queue, x-dead-letter-strategy.

    Return them as fields of `QueueArguments`, by name.

    :param quorum: True for a quorum queue, False for a classic one.
    :param is_restored: True for a queue of the data folder, which an earlier version may have accepted.
    :raises InvalidValue: for an invalid value.
    """
    name = "x-dead-letter-exchange"
    if is_restored:
        exchange = argument_checks.string(reader.get(name))
        routing_key = argument_checks.string(reader.get(DEAD_LETTER_KEY))
        if routing_key is not None and len(routing_key) > LONGEST_SHORT_STRING:
            routing_key = None
    else:
        exchange = argument_checks.exchange_name(reader.get(name), name, reader.described)
        routing_key = argument_checks.short_string(reader.get(DEAD_LETTER_KEY))
    if routing_key is not None and exchange is None:
        raise InvalidValue("routing_key_but_no_dlx_defined")
    at_least_once = False
    if quorum:
        at_least_once = argument_checks.dead_letter_strategy(reader.get("x-dead-letter-strategy"))
    return {
        "dead_letter_exchange": exchange,
        "dead_letter_routing_key": routing_key,
        "at_least_once": at_least_once,
    }


def _length_limits(reader: ArgumentReader, quorum: bool) -> dict[str, Any]:
    """Read the length limits and, for a classic queue, x-max-priority.

    Return them as fields of `QueueArguments`, by name.

    :param quorum: True for a quorum queue, False for a classic one.
    :raises InvalidValue: for an invalid value.
    """
    values: dict[str, Any] = {
        "max_length": argument_checks.non_negative(reader.get("x-max-length")),
        "max_length_bytes": argument_checks.non_negative(reader.get("x-max-length-bytes")),
    }
    if quorum:
        for name in ("x-max-in-memory-length", "x-max-in-memory-bytes"):
            argument_checks.non_negative(reader.get(name))
    else:
        values["max_priority"] = argument_checks.max_priority(reader.get("x-max-priority"))
    return values


def _overflow_and_mode(reader: ArgumentReader, quorum: bool) -> dict[str, Any]:
    """Read x-overflow and, for a classic queue, x-queue-mode, and check x-queue-version, which has no effect.

    Return them as fields of `QueueArguments`, by name.

    :param quorum: True for a quorum queue, False for a classic one.
    :raises InvalidValue: for an invalid value.
    """
    values: dict[str, Any] = {"overflow": argument_checks.overflow(reader.get("x-overflow"))}
    if not quorum:
        values["lazy"] = argument_checks.queue_mode(reader.get("x-queue-mode"))
        argument_checks.queue_version(reader.get("x-queue-version"))
    return values


def _consumers(reader: ArgumentReader, quorum: bool) -> dict[str, Any]:
    """Read x-single-active-consumer and x-consumer-timeout, and check arguments that have an effect only in a cluster.

    Return the first two as fields of `QueueArguments`, by name.

    :param quorum: True for a quorum queue, False for a classic one.
    :raises InvalidValue: for an invalid value.
    """
    values: dict[str, Any] = {
        "single_active_consumer": argument_checks.boolean(reader.get("x-single-active-consumer")),
        "consumer_timeout": argument_checks.non_negative(reader.get("x-consumer-timeout")),
    }
    if quorum:
        argument_checks.non_negative(reader.get("x-consumer-disconnected-timeout"))
        argument_checks.positive(reader.get("x-quorum-initial-group-size"))
    argument_checks.leader_locator(reader.get("x-queue-leader-locator"))
    return values


def _without_invalid_retries(fields: dict[str, Field]) -> dict[str, Field]:
    """Return the arguments without those x-delayed-retry-* whose values are invalid."""
    valid = dict(fields)
    for name, check in RETRY_CHECKS.items():
        try:
            check(fields.get(name))
        except InvalidValue:
            del valid[name]
    return valid


def _redelivery(reader: ArgumentReader, quorum: bool, takes_any_retries: bool) -> dict[str, Any]:
    """Read the delivery limit and the arguments of delayed retries.

    Return them as fields of `QueueArguments`, by name.

    :param quorum: True for a quorum queue, False for a classic one.
    :param takes_any_retries: True to treat an invalid x-delayed-retry-* as if it were missing.
    :raises InvalidValue: for an invalid value.
    """
    default = QUORUM_DELIVERY_LIMIT if quorum else -1
    limit = argument_checks.delivery_limit(reader.get("x-delivery-limit"), default)
    if takes_any_retries:
        reader = ArgumentReader(_without_invalid_retries(reader.fields), reader.described)
    delayed_retry = argument_checks.retry_type(reader.get("x-delayed-retry-type"))
    retry_min = argument_checks.positive(reader.get("x-delayed-retry-min"))
    retry_max = argument_checks.positive(reader.get("x-delayed-retry-max"))
    if 0 <= retry_max < retry_min and not takes_any_retries:
        raise InvalidValue("delayed_retry_max_below_min")
    return {
        "delivery_limit": limit,
        "delayed_retry": delayed_retry if retry_min >= 0 else "disabled",
        "delayed_retry_min": retry_min,
        "delayed_retry_max": retry_max if retry_max >= 0 else retry_min,
    }


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


def _is_quorum(field: Field | None) -> bool:
    names = ("classic", "quorum")
    return argument_checks.one_of(field, names, "\"unsupported queue type '{}'\"") == "quorum"
